// HelperOutput reads what vlcache-video writes, piece by piece, and trusts none of it:
//   vlcache-video 2 frames 300 fps 29.97 seconds 10.01 width 640 height 360 audio 1 times 0
//                             after "times 1" (of `info`, where the rate changes) VideoInfo::times, as doubles
//   frame 12                  and width * height * 3 bytes of RGB; for each frame asked for, in order
//   end
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/video/video.h"

namespace vlcache {

// The first line; `times` has a place for each frame, or none. Throws Error(kIo) unless it is one, with values that
// VideoInfo may have, within `limits`.
VideoInfo parse_helper_info(std::string_view line, const VideoLimits& limits);

class HelperOutput {
 public:
  // indices: the frames asked for. `take` outlives this.
  HelperOutput(std::span<const int64_t> indices, const VideoLimits& limits, const TakeFrame& take)
      : indices_(indices), limits_(limits), take_(take) {}

  // Receives the next bytes. Throws Error(kIo) at anything unexpected, and what `take` throws.
  void add(std::span<const std::byte> piece);
  // Set from the first line on; its times are whole when complete().
  const std::optional<VideoInfo>& info() const { return info_; }
  // Whether all that was asked for has come, and the end.
  bool complete() const { return ended_; }
  // How many frames have come.
  size_t n_frames() const { return n_taken_; }

 private:
  void read_line();
  void end_times() const;

  const std::span<const int64_t> indices_;
  const VideoLimits& limits_;
  const TakeFrame& take_;
  std::optional<VideoInfo> info_;
  std::string line_;     // so far
  Image frame_;          // being filled
  size_t n_filled_ = 0;  // bytes of it, or of the times
  size_t n_taken_ = 0;
  bool in_times_ = false, in_frame_ = false, ended_ = false;
};

}  // namespace vlcache
