// Clip: a video file opened by libavformat from a mapped file, and what one pass over its packets says about it.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
}

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace vlcache {

// What vlcache-video cannot do; kind: the word before the reason in what it prints, for the program that started it.
class ClipError : public std::runtime_error {
 public:
  ClipError(const char* kind, const std::string& reason) : std::runtime_error(reason), kind_(kind) {}
  const char* kind() const { return kind_; }
  static constexpr const char *kUnsupported = "unsupported", *kDamaged = "damaged", *kTooLarge = "too large";

 private:
  const char* kind_;
};

std::string av_words(int error);                                                  // of an AVERROR
[[gnu::format(printf, 1, 2)]] std::string clip_format(const char* pattern, ...);  // as printf

struct ClipLimits {
  int64_t max_pixels = 0, max_side = 0, max_frames = 0;
  int threads = 1;
};

struct FormatDeleter {
  void operator()(AVFormatContext* context) const;
};
struct PacketDeleter {
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
};
using FormatPtr = std::unique_ptr<AVFormatContext, FormatDeleter>;
using PacketPtr = std::unique_ptr<AVPacket, PacketDeleter>;

// Packets of the video stream, in the order in which they are decoded; those that are never shown are left out.
struct PacketList {
  struct Entry {
    int64_t pts;
    bool key;
  };
  std::vector<Entry> entries;
  std::vector<int64_t> shown;  // their times in ascending order: frame n is shown at shown[n]. Empty: some have none
  int64_t last_duration = 0;   // of the one shown last; 0: unknown
  bool timed = false;          // every packet has a time of its own; else frames are counted as the decoder gives them

  int64_t n_frames() const { return static_cast<int64_t>(entries.size()); }
};

class Clip {
 public:
  // `bytes` outlives this. Throws ClipError.
  Clip(std::span<const uint8_t> bytes, const ClipLimits& limits);

  // Reads all packets. Throws ClipError where the file is cut off.
  PacketList list_packets();
  // Reads from the start again.
  void rewind();
  // The next packet of the video; false at the end.
  bool read(AVPacket* packet);

  const AVStream& stream() const { return *format_->streams[stream_]; }
  bool has_audio() const;
  double seconds(int64_t pts) const { return static_cast<double>(pts) * av_q2d(stream().time_base); }
  const ClipLimits& limits() const { return limits_; }

  struct Timing {
    double fps = 0, seconds = 0;
    std::vector<double> times;  // seconds from the first frame to each, where the rate changes; else empty
  };
  Timing timing(const PacketList& packets) const;

 private:
  void open();
  bool read_any(AVPacket* packet);
  std::vector<double> times_of(const PacketList& packets) const;
  double last_seconds(const PacketList& packets, double span) const;

  const std::span<const uint8_t> bytes_;
  const ClipLimits limits_;
  FormatPtr format_;
  int stream_ = -1;
};

}  // namespace vlcache
