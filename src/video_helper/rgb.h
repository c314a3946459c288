// RgbConverter: decoded frames as RGB of the size at which a clip is shown, turned as its metadata says, with square
// pixels.
#pragma once

extern "C" {
#include <libavformat/avformat.h>
#include <libavutil/frame.h>
}

#include <cstdint>
#include <vector>

#include "video_helper/clip.h"

struct SwsContext;

namespace vlcache {

// How a frame's pixels move: to x' = a x + c y, y' = b x + d y, and a shift.
struct Turn {
  int a = 1, b = 0, c = 0, d = 1;
  bool swaps_sides() const { return a == 0; }
};
// Of a stream's display matrix. Angles other than quarter turns are left out.
Turn turn_of(const AVStream& stream);

class RgbConverter {
 public:
  RgbConverter(const AVStream& stream, const ClipLimits& limits);
  ~RgbConverter();
  RgbConverter(const RgbConverter&) = delete;

  int64_t width() const { return turn_.swaps_sides() ? height_ : width_; }
  int64_t height() const { return turn_.swaps_sides() ? width_ : height_; }
  // [height, width, 3]; frames of another size are scaled. Valid until the next call. Throws ClipError.
  const std::vector<uint8_t>& convert(const AVFrame& frame);

 private:
  void scale(const AVFrame& frame, bool alpha);
  void blend_with_white();
  void turn();

  int64_t width_, height_;  // before it is turned
  const Turn turn_;
  SwsContext* scaler_ = nullptr;
  std::vector<uint8_t> rgba_, rgb_, turned_;
};

}  // namespace vlcache
