#include "video_helper/rgb.h"

extern "C" {
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <algorithm>
#include <cmath>
#include <cstring>

namespace vlcache {
namespace {

// Equal on every machine: images are known by their pixels.
constexpr int kScaling = SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_BITEXACT;

// Old names of formats say what a frame's range says.
AVPixelFormat plain_format(AVPixelFormat format, bool& full_range) {
  switch (format) {
    case AV_PIX_FMT_YUVJ420P:
      full_range = true;
      return AV_PIX_FMT_YUV420P;
    case AV_PIX_FMT_YUVJ422P:
      full_range = true;
      return AV_PIX_FMT_YUV422P;
    case AV_PIX_FMT_YUVJ444P:
      full_range = true;
      return AV_PIX_FMT_YUV444P;
    case AV_PIX_FMT_YUVJ440P:
      full_range = true;
      return AV_PIX_FMT_YUV440P;
    default:
      return format;
  }
}

constexpr double kMostAspect = 16;  // more is damage

// Width of a pixel over its height.
double pixel_aspect(const AVStream& stream) {
  const AVRational stated =
      stream.sample_aspect_ratio.num != 0 ? stream.sample_aspect_ratio : stream.codecpar->sample_aspect_ratio;
  const double aspect = stated.num > 0 && stated.den > 0 ? av_q2d(stated) : 1;
  return aspect >= 1 / kMostAspect && aspect <= kMostAspect ? aspect : 1;
}

}  // namespace

Turn turn_of(const AVStream& stream) {
  size_t n_bytes = 0;
  const uint8_t* data = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &n_bytes);
  if (data == nullptr || n_bytes < 9 * sizeof(int32_t)) return {};
  int32_t m[9];  // 16.16: a b u, c d v, x y w
  std::memcpy(m, data, sizeof m);
  const auto sign = [](int32_t x) { return x > 0x8000 ? 1 : x < -0x8000 ? -1 : 0; };
  const Turn turn{.a = sign(m[0]), .b = sign(m[1]), .c = sign(m[3]), .d = sign(m[4])};
  const bool straight = turn.a != 0 && turn.d != 0 && turn.b == 0 && turn.c == 0;
  const bool quarter = turn.b != 0 && turn.c != 0 && turn.a == 0 && turn.d == 0;
  return straight || quarter ? turn : Turn{};
}

RgbConverter::RgbConverter(const AVStream& stream, const ClipLimits& limits)
    : width_(stream.codecpar->width), height_(stream.codecpar->height), turn_(turn_of(stream)) {
  const double aspect = pixel_aspect(stream);
  const auto scaled = [](int64_t side, double by) {
    return std::max<int64_t>(std::llround(static_cast<double>(side) * by), 1);
  };
  const int64_t wide = scaled(width_, aspect), high = scaled(height_, 1 / aspect);
  const auto fits = [&](int64_t w, int64_t h) {
    return std::max(w, h) <= limits.max_side && w * h <= limits.max_pixels;
  };
  if (aspect > 1 ? fits(wide, height_) : !fits(width_, high)) {  // one side grows, or the other shrinks within limits
    width_ = wide;
  } else {
    height_ = high;
  }
}

RgbConverter::~RgbConverter() { sws_freeContext(scaler_); }

const std::vector<uint8_t>& RgbConverter::convert(const AVFrame& frame) {
  const AVPixFmtDescriptor* format = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  if (format == nullptr || (format->flags & AV_PIX_FMT_FLAG_HWACCEL) != 0) {
    throw ClipError(ClipError::kUnsupported, "its frames have an unknown format of pixels");
  }
  const bool alpha = (format->flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
  scale(frame, alpha);
  if (alpha) blend_with_white();
  if (turn_.a == 1 && turn_.d == 1) return rgb_;
  turn();
  return turned_;
}

void RgbConverter::scale(const AVFrame& frame, bool alpha) {
  bool full_range = frame.color_range == AVCOL_RANGE_JPEG;
  const AVPixelFormat from = plain_format(static_cast<AVPixelFormat>(frame.format), full_range);
  const auto width = static_cast<int>(width_), height = static_cast<int>(height_);
  scaler_ = sws_getCachedContext(scaler_, frame.width, frame.height, from, width, height,
                                 alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24, kScaling, nullptr, nullptr, nullptr);
  if (scaler_ == nullptr) throw ClipError(ClipError::kUnsupported, "its format of pixels is not supported");
  const int* matrix =
      sws_getCoefficients(frame.colorspace == AVCOL_SPC_UNSPECIFIED ? SWS_CS_DEFAULT : frame.colorspace);
  sws_setColorspaceDetails(scaler_, matrix, full_range ? 1 : 0, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16,
                           1 << 16);
  const int n_channels = alpha ? 4 : 3;
  std::vector<uint8_t>& to = alpha ? rgba_ : rgb_;
  // swscale writes whole vectors of pixels beyond a line's end; what comes after the last line takes them.
  to.resize(static_cast<size_t>(n_channels) * static_cast<size_t>(width_ * height_) + 64);
  uint8_t* planes[4] = {to.data(), nullptr, nullptr, nullptr};
  const int strides[4] = {n_channels * width, 0, 0, 0};
  if (sws_scale(scaler_, frame.data, frame.linesize, 0, frame.height, planes, strides) <= 0) {
    throw ClipError(ClipError::kDamaged, "a frame cannot be converted to RGB");
  }
}

void RgbConverter::blend_with_white() {
  const auto n = static_cast<size_t>(width_ * height_);
  rgb_.resize(3 * n + 64);
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* from = &rgba_[4 * i];
    for (size_t c = 0; c < 3; ++c) {
      rgb_[3 * i + c] = static_cast<uint8_t>((from[c] * from[3] + 255 * (255 - from[3]) + 127) / 255);
    }
  }
}

void RgbConverter::turn() {
  turned_.resize(rgb_.size());
  const int64_t x0 = (turn_.a < 0 ? width_ - 1 : 0) + (turn_.c < 0 ? height_ - 1 : 0);
  const int64_t y0 = (turn_.b < 0 ? width_ - 1 : 0) + (turn_.d < 0 ? height_ - 1 : 0);
  for (int64_t y = 0; y < height_; ++y) {
    for (int64_t x = 0; x < width_; ++x) {
      const int64_t to_x = x0 + turn_.a * x + turn_.c * y, to_y = y0 + turn_.b * x + turn_.d * y;
      std::memcpy(&turned_[static_cast<size_t>(3 * (to_y * width() + to_x))],
                  &rgb_[static_cast<size_t>(3 * (y * width_ + x))], 3);
    }
  }
}

}  // namespace vlcache
