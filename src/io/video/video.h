// Videos: a clip's file or a list of frame images becomes VideoInfo and RGB frames. Clips are decoded by vlcache-video,
// a program of its own under limits and in a sandbox (src/video_helper), so that a fault in a clip or decoder ends that
// program alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/image/image.h"

namespace vlcache {

using VideoBytes = std::shared_ptr<const std::vector<std::byte>>;

// A clip, or the frames of one.
struct EncodedVideo {
  VideoBytes clip;                 // MP4, MOV, WebM, Matroska, AVI, MPEG, animated GIF, ...; or null, and
  std::vector<VideoBytes> frames;  // image files in their order, all of one size
  double fps = 0;                  // of `frames`: how many were taken in a second; 0: kFramesPerSecond
  std::string where;               // begins errors

  // What senders of frames sample by default, transformers' and Qwen's tools among them.
  static constexpr double kFramesPerSecond = 2;
};

struct VideoInfo {
  int64_t n_frames = 0;           // >= 1, counted, whatever the file's header says
  double fps = 0;                 // > 0, on average
  double seconds = 0;             // > 0
  int64_t width = 0, height = 0;  // as the clip is shown, rotation applied
  bool has_audio = false;         // it is ignored
  bool chosen = false;            // the sender chose its frames (EncodedVideo::frames): they are not sampled again
  // Where the rate of a clip changes: seconds from its first frame to each, ascending. Empty: frame n is shown n / fps
  // after the first.
  std::vector<double> times = {};
};

struct VideoLimits {
  ImageLimits image;                        // of each frame; max_bytes is not used
  int64_t max_frames = 4'000'000;           // of a clip: 18 hours of 60 a second
  int64_t max_listed = 4096;                // of EncodedVideo::frames, and of the frames read in one call
  std::chrono::seconds time{120};           // of one call
  int64_t memory_bytes = int64_t{4} << 30;  // of the program that decodes
};

// Asked about 20 times a second; true ends the call with Error(kCancelled).
using VideoCancelled = std::function<bool()>;
// One decoded frame and its number. The image may be moved from.
using TakeFrame = std::function<void(int64_t index, Image&& frame)>;

// Whether vlcache-video is beside this program or in ../libexec/vlcache. The first call, or the first clip, chooses its
// sandbox by decoding a pixel, and warns on standard error of what this machine leaves out of it.
bool can_decode_clips();

// Throws Error: kUnsupported (no video, an unknown format; vlcache-video is missing: says what to do), kInput (damaged,
// no frames), kMemory (beyond a limit). Demuxes a clip, decodes nothing of it. Any thread.
VideoInfo probe_video(const EncodedVideo& video, const VideoLimits& limits = {},
                      const VideoCancelled& cancelled = nullptr);

// Decodes the frames with these numbers (ascending, may repeat, each < info.n_frames) and hands each to `take`, in
// order, as RGB of info.width x info.height; memory holds one at a time. `info`: of probe_video. What `take` throws
// ends the call. Throws as probe_video does; where a clip is damaged, the error says at which second.
void read_frames(const EncodedVideo& video, const VideoInfo& info, std::span<const int64_t> indices,
                 const TakeFrame& take, const VideoLimits& limits = {}, const VideoCancelled& cancelled = nullptr);

}  // namespace vlcache
