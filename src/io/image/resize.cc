// Pillow's 8-bit resampler. The definition is its documentation (concepts: filters) and its results; the order of
// floating-point steps below is part of it.
#include "io/image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/os/threads.h"
#include "io/image/resize_kernels.h"

namespace vlcache {
namespace {

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double hamming(double x) {
  x = std::abs(x);
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x = x * std::numbers::pi;
  return std::sin(x) / x * (0.54f + 0.46f * std::cos(x));  // the constants are rounded to float, as Pillow's
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x = x * std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

struct Filter {
  double (*weight)(double);
  double support;
};

Filter filter_of(Resample filter) {
  switch (filter) {
    case Resample::kLanczos:
      return {lanczos, 3.0};
    case Resample::kBilinear:
      return {bilinear, 1.0};
    case Resample::kBicubic:
      return {bicubic, 2.0};
    case Resample::kBox:
      return {box, 0.5};
    case Resample::kHamming:
      return {hamming, 1.0};
    case Resample::kNearest:
      break;
  }
  CHECK(false);
  return {};
}

// Along one axis: output i is the sum over k < n_taps of source[first[i] + k] * weights[i, k].
struct Taps {
  int64_t n_taps = 0;
  std::vector<int32_t> first, count;  // [n_out]; count: how many weights are not padding
  std::vector<int32_t> weights;       // [n_out, n_taps]
};

Taps compute_taps(int64_t n_in, int64_t n_out, const Filter& filter) {
  const double scale = static_cast<double>(n_in) / static_cast<double>(n_out);
  const double filter_scale = std::max(scale, 1.0);
  const double support = filter.support * filter_scale;
  Taps taps;
  taps.n_taps = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.first.resize(static_cast<size_t>(n_out));
  taps.count.resize(static_cast<size_t>(n_out));
  taps.weights.resize(static_cast<size_t>(n_out * taps.n_taps));
  std::vector<double> weight(static_cast<size_t>(taps.n_taps));
  for (int64_t i = 0; i < n_out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const double step = 1.0 / filter_scale;
    // Truncation, not floor: a bound that would be negative is 0.
    const int64_t begin = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t end = std::min(n_in, static_cast<int64_t>(center + support + 0.5));
    const int64_t n = end - begin;
    double total = 0.0;
    for (int64_t k = 0; k < n; ++k) {
      const double w = filter.weight((static_cast<double>(k + begin) - center + 0.5) * step);
      weight[static_cast<size_t>(k)] = w;
      total += w;
    }
    for (int64_t k = 0; k < n; ++k) {
      double w = weight[static_cast<size_t>(k)];
      if (total != 0.0) w /= total;
      taps.weights[static_cast<size_t>(i * taps.n_taps + k)] =
          static_cast<int32_t>((w < 0 ? -0.5 : 0.5) + w * (1 << kWeightBits));
    }
    taps.first[static_cast<size_t>(i)] = static_cast<int32_t>(begin);
    taps.count[static_cast<size_t>(i)] = static_cast<int32_t>(n);
  }
  return taps;
}

// Rows that one thread computes together: enough work to outweigh the cost of handing it out.
int64_t row_grain(int64_t row_work) { return std::max<int64_t>(1, (1 << 19) / std::max<int64_t>(1, row_work)); }

Image resample_horizontally(const Image& image, int64_t width, const Filter& filter) {
  const Taps taps = compute_taps(image.width, width, filter);
  const int64_t n_taps = (taps.n_taps + kTapBlock - 1) / kTapBlock * kTapBlock;
  std::vector<int32_t> weights(static_cast<size_t>(width * n_taps * 3));
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t k = 0; k < taps.n_taps; ++k) {
      std::fill_n(weights.begin() + (i * n_taps + k) * 3, 3, taps.weights[static_cast<size_t>(i * taps.n_taps + k)]);
    }
  }
  const HorizontalPass pass{taps.first.data(), weights.data(), n_taps, width};
  Image out(width, image.height);
  // Each thread's copy of a row, with room after it: padded taps read past the end. Allocated here, as nothing may
  // throw inside the loop.
  const int64_t copy_bytes = (image.width + n_taps) * 3;
  std::vector<uint8_t> copies(static_cast<size_t>(n_threads() * copy_bytes));
  parallel_ranges(image.height, row_grain(width * n_taps * 3), [&](int64_t begin, int64_t end, int thread) {
    uint8_t* row = copies.data() + thread * copy_bytes;
    for (int64_t y = begin; y < end; ++y) {
      std::memcpy(row, image.row(y), static_cast<size_t>(image.width * 3));
      resample_row(pass, row, out.row(y));
    }
  });
  return out;
}

Image resample_vertically(const Image& image, int64_t height, const Filter& filter) {
  const Taps taps = compute_taps(image.height, height, filter);
  Image out(image.width, height);
  const int64_t row_bytes = image.width * 3;
  parallel_ranges(height, row_grain(row_bytes * taps.n_taps), [&](int64_t begin, int64_t end, int) {
    for (int64_t y = begin; y < end; ++y) {
      const size_t i = static_cast<size_t>(y);
      const RowBlend blend{&taps.weights[i * static_cast<size_t>(taps.n_taps)], taps.count[i], image.row(taps.first[i]),
                           row_bytes};
      combine_rows(blend, row_bytes, out.row(y));
    }
  });
  return out;
}

// Source position of each output position. The position is accumulated, as in Pillow; its rounding is part of the
// result.
std::vector<int64_t> nearest_positions(int64_t n_in, int64_t n_out) {
  const double step = static_cast<double>(n_in) / static_cast<double>(n_out);
  std::vector<int64_t> positions(static_cast<size_t>(n_out));
  double at = step * 0.5;
  for (int64_t& position : positions) {
    position = static_cast<int64_t>(at);
    at += step;
  }
  return positions;
}

Image resize_nearest(const Image& image, int64_t width, int64_t height) {
  const std::vector<int64_t> xs = nearest_positions(image.width, width), ys = nearest_positions(image.height, height);
  Image out(width, height);
  for (int64_t y = 0; y < height; ++y) {
    if (ys[static_cast<size_t>(y)] >= image.height) continue;  // rounding went past the end: black
    const uint8_t* from = image.row(ys[static_cast<size_t>(y)]);
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < width; ++x) {
      if (xs[static_cast<size_t>(x)] < image.width) std::memcpy(to + 3 * x, from + 3 * xs[static_cast<size_t>(x)], 3);
    }
  }
  return out;
}

// The order of the passes decides the rounding. Pillow 13 starts with the rows where the height shrinks by more than
// twice what the width does (measured: 1850 random sizes around the boundary, no exception); up to Pillow 12 the
// columns always came first.
bool vertical_first(const Image& image, int64_t width, int64_t height) {
  return height < image.height && image.height - height > 2 * (image.width - width);
}

// `tallest`: the largest number of rows of any intermediate image of this width.
void check_size(std::string_view what, const Image& image, const CutOut& to, int64_t tallest,
                const ImageLimits& limits) {
  const bool positive = to.width > 0 && to.height > 0;
  if (positive && std::max(to.width, tallest) <= limits.max_side && to.width <= limits.max_pixels / tallest) return;
  throw Error(ErrorCode::kShape, std::string(what) + " an image of " + std::to_string(image.width) + " x " +
                                     std::to_string(image.height) + " to " + std::to_string(to.width) + " x " +
                                     std::to_string(to.height) +
                                     (positive ? ": the limit is " + std::to_string(limits.max_pixels) + " pixels, " +
                                                     std::to_string(limits.max_side) + " a side"
                                               : ": expected at least 1 x 1"));
}

}  // namespace

Image resize(const Image& image, int64_t width, int64_t height, Resample filter, const ImageLimits& limits) {
  CHECK(image.width > 0 && image.height > 0);
  check_size("resizing", image, {.width = width, .height = height}, std::max(height, image.height), limits);
  if (width == image.width && height == image.height) return image;
  if (filter == Resample::kNearest) return resize_nearest(image, width, height);
  const Filter chosen = filter_of(filter);
  if (height == image.height) return resample_horizontally(image, width, chosen);
  if (width == image.width) return resample_vertically(image, height, chosen);
  if (vertical_first(image, width, height))
    return resample_horizontally(resample_vertically(image, height, chosen), width, chosen);
  return resample_vertically(resample_horizontally(image, width, chosen), height, chosen);
}

Image cut_out(const Image& image, const CutOut& part, Rgb colour, const ImageLimits& limits) {
  check_size("cropping or padding", image, part, part.height, limits);
  const int64_t left = std::clamp<int64_t>(-part.x, 0, part.width), top = std::clamp<int64_t>(-part.y, 0, part.height);
  const int64_t right = std::clamp<int64_t>(image.width - part.x, left, part.width);
  const int64_t bottom = std::clamp<int64_t>(image.height - part.y, top, part.height);
  Image out(part.width, part.height);
  const bool framed = right - left < part.width || bottom - top < part.height;
  if (framed && colour != Rgb{0, 0, 0}) {
    for (size_t i = 0; i < out.rgb.size(); i += 3) std::memcpy(&out.rgb[i], colour.data(), 3);
  }
  for (int64_t y = top; y < bottom && left < right; ++y) {
    std::memcpy(out.row(y) + 3 * left, image.row(part.y + y) + 3 * (part.x + left),
                static_cast<size_t>(3 * (right - left)));
  }
  return out;
}

void to_planes(const Image& image, const ChannelTables& tables, std::span<float> out) {
  const int64_t n = image.width * image.height;
  CHECK(static_cast<int64_t>(out.size()) == 3 * n);
  float* planes[3] = {out.data(), out.data() + n, out.data() + 2 * n};
  parallel_ranges(n, 65536, [&](int64_t begin, int64_t end, int) {
    const uint8_t* from = image.rgb.data();
    for (int64_t i = begin; i < end; ++i) {
      for (size_t c = 0; c < 3; ++c) planes[c][i] = tables[c][from[3 * i + static_cast<int64_t>(c)]];
    }
  });
}

}  // namespace vlcache
