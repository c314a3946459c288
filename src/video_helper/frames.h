// FrameReader: chosen frames of a clip, decoded from the keyframe before each, exact whatever order packets have.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
}

#include <cstdint>
#include <functional>
#include <memory>

#include "video_helper/clip.h"

namespace vlcache {

struct FrameDeleter {
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
};
struct CodecDeleter {
  void operator()(AVCodecContext* context) const { avcodec_free_context(&context); }
};

class FrameReader {
 public:
  // Both outlive this. Throws ClipError.
  FrameReader(Clip& clip, const PacketList& packets);

  // The frame with this number, which is larger than the one of the call before. Valid until the next call. Throws
  // ClipError.
  const AVFrame& read(int64_t index);

 private:
  void open_decoder();
  void start_over();
  int64_t keyframe_before(int64_t pts) const;
  void skip_to(int64_t packet);
  bool receive();
  bool send_next();
  const AVFrame& read_counted(int64_t index);
  void check_last(int64_t index) const;
  double second_of(int64_t index) const;
  [[noreturn]] void fail_at(double second, const std::string& reason) const;

  Clip& clip_;
  const PacketList& packets_;
  std::unique_ptr<AVCodecContext, CodecDeleter> decoder_;
  std::unique_ptr<AVFrame, FrameDeleter> frame_, incoming_;  // the last one decoded; scratch of receive
  PacketPtr packet_;
  int64_t next_packet_ = 0;   // of packets_.entries
  int64_t n_received_ = 0;    // frames, since the decoder was opened
  bool holds_frame_ = false;  // frame_ may be the next that is asked for
  bool skips_ = true;         // decoding begins at keyframes
  bool drained_ = false;
};

}  // namespace vlcache
