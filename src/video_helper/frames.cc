#include "video_helper/frames.h"

#include <algorithm>
#include <cmath>

namespace vlcache {

namespace {

// Packets that a clip may count beyond what its decoder shows: the last frame then stands for theirs.
constexpr int64_t kSpare = 2;

}  // namespace

FrameReader::FrameReader(Clip& clip, const PacketList& packets)
    : clip_(clip),
      packets_(packets),
      frame_(av_frame_alloc()),
      incoming_(av_frame_alloc()),
      packet_(av_packet_alloc()),
      skips_(packets.timed) {
  if (frame_ == nullptr || incoming_ == nullptr || packet_ == nullptr) throw std::bad_alloc();
  start_over();
}

void FrameReader::open_decoder() {
  const AVCodecParameters* parameters = clip_.stream().codecpar;
  const AVCodec* codec = avcodec_find_decoder(parameters->codec_id);
  if (codec == nullptr) {
    throw ClipError(ClipError::kUnsupported,
                    clip_format("there is no decoder of its codec (%s)", avcodec_get_name(parameters->codec_id)));
  }
  decoder_.reset(avcodec_alloc_context3(codec));
  if (decoder_ == nullptr || avcodec_parameters_to_context(decoder_.get(), parameters) < 0) throw std::bad_alloc();
  decoder_->pkt_timebase = clip_.stream().time_base;
  decoder_->thread_count = clip_.limits().threads;
  decoder_->max_pixels = clip_.limits().max_pixels;
  if (const int error = avcodec_open2(decoder_.get(), codec, nullptr); error < 0) {
    throw ClipError(ClipError::kDamaged, av_words(error));
  }
}

void FrameReader::start_over() {
  clip_.rewind();
  open_decoder();
  next_packet_ = n_received_ = 0;
  holds_frame_ = drained_ = false;
}

double FrameReader::second_of(int64_t index) const {
  if (packets_.timed) return clip_.seconds(packets_.shown[static_cast<size_t>(index)] - packets_.shown.front());
  return static_cast<double>(index) / std::max(1.0, av_q2d(clip_.stream().avg_frame_rate));
}

void FrameReader::fail_at(double second, const std::string& reason) const {
  throw ClipError(ClipError::kDamaged, clip_format("it is damaged at second %.1f (%s); writing it again may repair it: "
                                                   "ffmpeg -i IN OUT.mp4",
                                                   second, reason.c_str()));
}

// The last keyframe that is not shown after `pts`, in the order of decoding.
int64_t FrameReader::keyframe_before(int64_t pts) const {
  int64_t found = 0;
  for (int64_t i = next_packet_; i < packets_.n_frames(); ++i) {
    const PacketList::Entry& entry = packets_.entries[static_cast<size_t>(i)];
    if (!entry.key) continue;
    if (entry.pts > pts) break;
    found = i;
  }
  return found;
}

// Leaves packets out, with all that the decoder knows of earlier ones.
void FrameReader::skip_to(int64_t packet) {
  avcodec_flush_buffers(decoder_.get());
  holds_frame_ = false;
  while (next_packet_ < packet && clip_.read(packet_.get())) {
    if ((packet_->flags & AV_PKT_FLAG_DISCARD) == 0) ++next_packet_;
  }
}

bool FrameReader::receive() {
  const int error = avcodec_receive_frame(decoder_.get(), incoming_.get());
  if (error == AVERROR(EAGAIN) || error == AVERROR_EOF) {
    drained_ = drained_ || error == AVERROR_EOF;
    return false;
  }
  if (error < 0) fail_at(second_of(std::clamp<int64_t>(next_packet_ - 1, 0, packets_.n_frames() - 1)), av_words(error));
  ++n_received_;
  av_frame_unref(frame_.get());
  av_frame_move_ref(frame_.get(), incoming_.get());
  holds_frame_ = true;
  return true;
}

// False: all packets were sent, and the decoder was told so.
bool FrameReader::send_next() {
  if (drained_) return false;
  const bool more = clip_.read(packet_.get());
  const int error = avcodec_send_packet(decoder_.get(), more ? packet_.get() : nullptr);
  if (!more) return !(drained_ = error == AVERROR_EOF);
  if (error < 0) fail_at(second_of(std::min(next_packet_, packets_.n_frames() - 1)), av_words(error));
  if ((packet_->flags & AV_PKT_FLAG_DISCARD) == 0) ++next_packet_;
  return true;
}

const AVFrame& FrameReader::read(int64_t index) {
  if (!packets_.timed) return read_counted(index);
  const int64_t pts = packets_.shown[static_cast<size_t>(index)];
  while (true) {
    const int64_t key = skips_ ? keyframe_before(pts) : 0;
    if (key > next_packet_) skip_to(key);
    while (holds_frame_ || receive() || send_next()) {
      const int64_t shown = frame_->best_effort_timestamp;
      if (holds_frame_ && shown != AV_NOPTS_VALUE && shown >= pts) break;
      holds_frame_ = false;
    }
    const bool exact = holds_frame_ && frame_->best_effort_timestamp == pts;
    if (!exact && skips_) {  // it needs packets before its keyframe, or is never shown
      skips_ = false;
      start_over();
      continue;
    }
    if (!holds_frame_) check_last(index);
    if (frame_->decode_error_flags != 0 || (frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0) {
      fail_at(second_of(index), "a frame has errors");
    }
    return *frame_;
  }
}

// As `read`, where packets have no times.
const AVFrame& FrameReader::read_counted(int64_t index) {
  while (n_received_ <= index) {
    if (receive() || send_next()) continue;
    check_last(index);
    break;
  }
  return *frame_;
}

// Whether the last frame that was decoded may stand for one that never came.
void FrameReader::check_last(int64_t index) const {
  if (n_received_ > 0 && index >= packets_.n_frames() - kSpare) return;
  fail_at(second_of(index), "its last frames are missing");
}

}  // namespace vlcache
