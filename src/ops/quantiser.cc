#include "ops/quantiser.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/at.h"
#include "base/dtype.h"
#include "base/error.h"

namespace vlcache {
namespace {

constexpr int64_t kGroup = 32;  // inputs, of all forms made here

// The same element of four rows: no sums across a vector, and every compiler has vectors of this kind.
using Lanes = float __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4;

inline Lanes all(float x) { return Lanes{} + x; }
inline Lanes least(const Lanes& a, const Lanes& b) { return a < b ? a : b; }
inline Lanes most(const Lanes& a, const Lanes& b) { return a > b ? a : b; }
inline Lanes inverse(const Lanes& x) { return x > Lanes{} ? 1.0f / x : Lanes{}; }  // of 0: 0
// To the nearest whole number, even between two; |x| < 2^22.
inline Lanes nearest(const Lanes& x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// Ranges tried, as parts of a group's own: a wider one fits the ends less often, a narrower one cuts them off. Mean
// squared error of 4 bits, normal values, against 15 ranges 0.02 apart, one round and the nearest bytes, which take as
// long: -2.8 %; 15 ranges, 2 rounds and 3 bytes -3.5 %, in 1.3 times the time.
constexpr int kCandidates = 8;
constexpr float kWidest = 1.04f, kNarrowing = 0.04f;
constexpr int kRounds = 2;                // refinements of the best
constexpr float kSteps[] = {0.0f, 1.0f};  // bytes of a scale that are tried, from the nearest one on

// w ~ scale * q + low, low <= 0.
struct Fit {
  Lanes scale, low;
};

// kGroup values of four rows, and what their inputs weigh, on average 1; weights null: all weigh 1.
template <bool kWeighed>
struct Group {
  const Lanes* values;
  const float* weights;
  Lanes weighed(int64_t k, const Lanes& x) const {
    if constexpr (kWeighed) return x * weights[k];
    return x;
  }
};

// Weighed sums over a group of codes and values.
struct Sums {
  Lanes q{}, qq{}, qw{}, w{}, ww{};
};

// The scale and offset of the least squares for given codes, and the squared error.
Fit refine(const Sums& s, Lanes& error) {
  constexpr auto n = static_cast<float>(kGroup);
  const Lanes zero{}, determinant = n * s.qq - s.q * s.q;
  const Lanes divisor = determinant > zero ? determinant : all(1.0f);
  const Lanes scale = (n * s.qw - s.q * s.w) / divisor, low = (s.qq * s.w - s.q * s.qw) / divisor;
  // A positive offset has no byte, and equal codes no slope: a line through zero.
  const Lanes through_zero = s.qw / (s.qq > zero ? s.qq : all(1.0f));
  const auto is_line = (determinant > zero) & (low <= zero);
  const Fit fit{is_line ? scale : through_zero, is_line ? low : zero};
  error =
      s.ww + fit.scale * (fit.scale * s.qq - 2.0f * s.qw + 2.0f * fit.low * s.q) + fit.low * (n * fit.low - 2.0f * s.w);
  return fit;
}

template <typename T>
T value_at(const std::byte* from, int64_t k) {
  T value;
  std::memcpy(&value, from + k * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

// Inputs [begin, begin + kGroup) of a row as f32, zeros after the last.
void load_group(const Tensor& part, int64_t row, int64_t begin, float* out) {
  const int64_t width = std::min(kGroup, part.row_size() - begin);
  std::fill(out + width, out + kGroup, 0.0f);
  const std::byte* from = part.data + (row * part.stride + begin) * dtype_bytes(part.dtype);
  for (int64_t k = 0; k < width; ++k) {
    if (part.dtype == DType::kF32) out[k] = value_at<float>(from, k);
    if (part.dtype == DType::kBF16) out[k] = to_float(value_at<bf16>(from, k));
    if (part.dtype == DType::kF16) out[k] = f16_to_float(value_at<uint16_t>(from, k));
  }
}

void interleave(const float (&rows)[kLanes][kGroup], Lanes* group) {
  for (int64_t k = 0; k < kGroup; ++k) group[k] = Lanes{rows[0][k], rows[1][k], rows[2][k], rows[3][k]};
}

// The best fit of a group.
template <bool kWeighed>
Fit search(const Group<kWeighed>& group, float largest_code) {
  const Lanes zero{};
  Lanes low = zero, high = zero;
  Sums whole;
  for (int64_t k = 0; k < kGroup; ++k) {
    const Lanes w = group.values[k], weighed = group.weighed(k, w);
    low = least(low, w), high = most(high, w), whole.w += weighed, whole.ww += weighed * w;
  }
  const Lanes range = high - low;
  Fit best{range / largest_code, low};  // of equal values below zero, which are one code and give no line
  Lanes best_error = all(std::numeric_limits<float>::infinity());
  const auto attempt = [&](const Lanes& begin, const Lanes& steps) {
    Sums sums{.w = whole.w, .ww = whole.ww};
    for (int64_t k = 0; k < kGroup; ++k) {
      const Lanes w = group.values[k], q = nearest(least(most((w - begin) * steps, zero), all(largest_code)));
      const Lanes weighed = group.weighed(k, q);
      sums.q += weighed, sums.qq += weighed * q, sums.qw += weighed * w;
    }
    Lanes error;
    const Fit fit = refine(sums, error);
    const auto better = (error < best_error) & (fit.scale > zero);
    best_error = better ? error : best_error;
    best.scale = better ? fit.scale : best.scale, best.low = better ? fit.low : best.low;
  };
  for (int i = 0; i < kCandidates; ++i) {
    const float part = kWidest - kNarrowing * static_cast<float>(i);
    attempt(low + range * (0.5f - 0.5f * part), range > zero ? largest_code / (range * part) : zero);
  }
  for (int i = 0; i < kRounds; ++i) attempt(best.low, inverse(best.scale));
  return best;
}

// A scale and a minimum as bytes, whole numbers each.
struct Bytes {
  Lanes scale, low;
};

// Those near a fit whose codes, chosen again for them, have the least squared error. factors: what a byte is worth.
template <bool kWeighed>
Bytes round_fit(const Group<kWeighed>& group, const Fit& fit, const Fit& factors, float largest_code) {
  const Lanes zero{}, largest_byte = all(255.0f), nearest_scale = nearest(fit.scale * inverse(factors.scale));
  const auto code = [&](const Lanes& w, const Lanes& minimum, const Lanes& steps) {
    return nearest(least(most((w + minimum) * steps, zero), all(largest_code)));
  };
  Bytes best{};
  Lanes best_error = all(std::numeric_limits<float>::infinity());
  for (const float more : kSteps) {
    const Lanes scale_byte = least(nearest_scale + more, largest_byte);
    const Lanes scale = scale_byte * factors.scale, steps = inverse(scale);
    Lanes sum_q{}, sum_w{};
    for (int64_t k = 0; k < kGroup; ++k) {
      sum_q += group.weighed(k, code(group.values[k], -fit.low, steps)), sum_w += group.weighed(k, group.values[k]);
    }
    const Lanes minimum = (scale * sum_q - sum_w) / static_cast<float>(kGroup);  // of the least squares
    const Lanes low_byte = least(most(nearest(minimum * inverse(factors.low)), zero), largest_byte);
    const Lanes low = low_byte * factors.low;
    Lanes error{};
    for (int64_t k = 0; k < kGroup; ++k) {
      const Lanes off = group.values[k] + low - scale * code(group.values[k], low, steps);
      error += group.weighed(k, off) * off;
    }
    const auto better = error < best_error;
    best_error = better ? error : best_error;
    best.scale = better ? scale_byte : best.scale, best.low = better ? low_byte : best.low;
  }
  return best;
}

constexpr uint16_t kLargestF16 = 0x7bff;

// The f16 next to x >= 0.
uint16_t scale_for(float x) { return std::min(float_to_f16(x), kLargestF16); }

// The smallest f16 whose 255-fold is at least x.
uint16_t factor_for(float x) {
  uint16_t bits = scale_for(x / 255.0f);
  while (bits < kLargestF16 && f16_to_float(bits) * 255.0f < x) ++bits;
  return bits;
}

// Padded to whole groups; within each of them their mean is 1, which padding weighs, too.
std::vector<float> by_group(std::span<const float> weights) {
  std::vector<float> all(at((std::ssize(weights) + kGroup - 1) / kGroup * kGroup), 1.0f);
  for (size_t begin = 0; begin < weights.size(); begin += kGroup) {
    const std::span group(all.data() + begin, std::min(at(kGroup), weights.size() - begin));
    std::ranges::copy(weights.subspan(begin, group.size()), group.begin());
    const float largest = *std::ranges::max_element(group);
    double sum = 0;
    for (float& weight : group) {
      CHECK(weight >= 0 && std::isfinite(weight));
      weight = largest > 0 ? std::max(weight / largest, QuantisedRows::kLeastWeight) : 1.0f;
      sum += weight;
    }
    for (float& weight : group) weight *= static_cast<float>(static_cast<double>(group.size()) / sum);
  }
  return all;
}

}  // namespace

float distance_from_grid(const Tensor& values) {
  constexpr int64_t kMost = 32;  // rows, and groups of a row
  constexpr float kLargestCode = 15;
  const int64_t n_rows = std::min(kMost, values.rows()), of_row = values.row_size() / kGroup;
  const int64_t n_groups = std::min(kMost, of_row);
  std::vector<float> distances;  // of groups
  for (int64_t i = 0; i < n_rows; i += kLanes) {
    for (int64_t g = 0; g < n_groups; ++g) {
      const int64_t begin = g * of_row / n_groups * kGroup;
      float rows[kLanes][kGroup];
      for (int64_t lane = 0; lane < kLanes; ++lane)
        load_group(values, std::min(i + lane, n_rows - 1) * values.rows() / n_rows, begin, rows[lane]);
      Lanes group[kGroup];
      interleave(rows, group);
      const Fit fit = search(Group<false>{group, nullptr}, kLargestCode);
      const Lanes steps = inverse(fit.scale);
      Lanes sum{};
      for (const Lanes& w : group) {
        const Lanes place = (w - fit.low) * steps, q = nearest(least(most(place, Lanes{}), all(kLargestCode)));
        sum += most(place - q, q - place);
      }
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        if (std::isfinite(sum[lane]) && fit.scale[lane] > 0)
          distances.push_back(sum[lane] / static_cast<float>(kGroup));
      }
    }
  }
  if (distances.empty()) return 0;
  const auto middle = distances.begin() + std::ssize(distances) / 2;
  std::ranges::nth_element(distances, middle);
  return *middle;
}

QuantisedRows::QuantisedRows(const QuantForm& form, std::vector<Tensor> parts, std::span<const float> input_weights)
    : form_(form), parts_(std::move(parts)) {
  for (const Tensor& part : parts_)
    CHECK(part.dtype == DType::kF32 || part.dtype == DType::kBF16 || part.dtype == DType::kF16);
  CHECK((form == kInt4 || form == kInt6 || form == kInt8) && !parts_.empty());
  n_in_ = parts_[0].row_size();
  for (const Tensor& part : parts_) {
    CHECK(part.row_size() == n_in_);
    n_out_ += part.rows();
  }
  CHECK(input_weights.empty() || std::ssize(input_weights) == n_in_);
  if (form.min == MinKind::kU8) input_weights_ = by_group(input_weights);
}

// As load_group(); infinity and NaN become 0.
void QuantisedRows::load(int64_t row, int64_t begin, float* out) const {
  const Tensor* part = parts_.data();
  for (; row >= part->rows(); ++part) row -= part->rows();
  load_group(*part, row, begin, out);
  uint32_t largest = 0;  // an exponent of ones is that of infinity and NaN
  for (int64_t k = 0; k < kGroup; ++k) largest = std::max(largest, std::bit_cast<uint32_t>(out[k]) & 0x7fffffffu);
  if (largest < 0x7f800000u) return;
  all_finite_ = false;
  std::replace_if(
      out, out + kGroup, [](float x) { return !std::isfinite(x); }, 0.0f);
}

// Scales and minima of n rows from `first` on, as the bytes of `out`.
template <bool kWeighed>
void QuantisedRows::fit(int64_t first, int64_t n, QuantRows& out) const {
  const int64_t n_groups = form_.n_groups(n_in_);
  const auto largest_code = static_cast<float>((1 << form_.bits) - 1);
  std::vector<Lanes> values(at(n_groups * kGroup));  // of four rows
  std::vector<Fit> fits(at(n_groups));
  const auto group_at = [&](int64_t g) {
    return Group<kWeighed>{&values[at(g * kGroup)], kWeighed ? &input_weights_[at(g * kGroup)] : nullptr};
  };
  for (int64_t i = 0; i < n; i += kLanes) {
    float rows[kLanes][kGroup];
    for (int64_t g = 0; g < n_groups; ++g) {
      for (int64_t lane = 0; lane < kLanes; ++lane) load(first + std::min(i + lane, n - 1), g * kGroup, rows[lane]);
      Lanes* group = &values[at(g * kGroup)];
      interleave(rows, group);
      fits[at(g)] = search(group_at(g), largest_code);
    }
    const int64_t n_lanes = std::min(kLanes, n - i);
    Fit factors{};
    for (int64_t lane = 0; lane < n_lanes; ++lane) {
      float scale = 0, low = 0;
      for (const Fit& f : fits) scale = std::max(scale, f.scale[lane]), low = std::max(low, -f.low[lane]);
      out.shared_scales[at(i + lane)] = factor_for(scale), out.shared_mins[at(i + lane)] = factor_for(low);
      factors.scale[lane] = f16_to_float(out.shared_scales[at(i + lane)]);
      factors.low[lane] = f16_to_float(out.shared_mins[at(i + lane)]);
    }
    for (int64_t g = 0; g < n_groups; ++g) {
      const Bytes bytes = round_fit(group_at(g), fits[at(g)], factors, largest_code);
      for (int64_t lane = 0; lane < n_lanes; ++lane) {
        out.scales[at((i + lane) * n_groups + g)] = static_cast<uint16_t>(bytes.scale[lane]);
        out.mins[at((i + lane) * n_groups + g)] = static_cast<uint16_t>(bytes.low[lane]);
      }
    }
  }
}

void QuantisedRows::read(int64_t first, int64_t n, QuantRows& out) const {
  CHECK(0 < n && first + n <= n_out_);
  out.resize(form_, n, n_in_);
  const bool fitted = form_.min == MinKind::kU8;
  if (fitted && input_weights_.empty()) fit<false>(first, n, out);
  if (fitted && !input_weights_.empty()) fit<true>(first, n, out);
  const int64_t n_groups = form_.n_groups(n_in_);
  const auto largest_code = static_cast<float>((1 << form_.bits) - 1);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t g = 0; g < n_groups; ++g) {
      float values[kGroup];
      load(first + i, g * kGroup, values);
      if (!fitted) {
        float largest = 0;
        for (const float x : values) largest = std::max(largest, std::abs(x));
        out.scales[at(i * n_groups + g)] = scale_for(largest / 127.0f);
      }
      const float scale = out.scale(i, g), steps = scale > 0 ? 1.0f / scale : 0.0f;
      const float zero_code = fitted ? -out.min(i, g) * steps : 128.0f;
      uint8_t codes[kGroup];
      for (int64_t k = 0; k < kGroup; ++k) {
        const float q = std::min(std::max(values[k] * steps + zero_code, 0.0f), largest_code);
        codes[k] = static_cast<uint8_t>(static_cast<int32_t>(q + 0.5f));
      }
      std::copy_n(codes, std::min(kGroup, n_in_ - g * kGroup), out.codes.data() + i * n_in_ + g * kGroup);
    }
  }
}

}  // namespace vlcache
