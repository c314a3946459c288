// VideoProcessor: which frames of a video a model is shown, and how two of them become a unit for its vision encoder,
// as the video processors of Hugging Face checkpoints do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "io/image/image.h"
#include "model/images/image_tiles.h"
#include "model/processors/settings.h"

namespace vlcache {

class Checkpoint;

// What the choice of frames depends on.
struct VideoTiming {
  int64_t n_frames = 0;
  double fps = 0;  // on average; 0: not known, kUnknownFps is assumed
  // Where the rate changes: when each frame is shown, [n_frames] seconds, ascending from 0, and when the last one ends.
  // Empty: frame n is shown at n / fps.
  std::vector<double> times = {};
  double end = 0;
};
inline constexpr double kUnknownFps = 24;  // as transformers

// How many frames are shown; zeros: as many as the checkpoint's settings say.
struct VideoSampling {
  double fps = 0;
  int64_t max_frames = 0;
  bool all = false;  // they were chosen before
};

// The frames that are shown, in their order; one may repeat.
struct ShownFrames {
  std::vector<int64_t> indices;
  // When each is shown: the frame's own time. A frame that is shown again because it lasts has the time of that place.
  std::vector<double> seconds;
  double fps = 0;          // how many of a second are shown, on average
  bool own_times = false;  // the frames are not evenly spaced
};

// Frames are resized as Pillow resizes, like images. transformers knows these classes with torchvision's arithmetic
// alone, which differs from it by at most 2 of 256 levels. Const and safe to share between threads.
class VideoProcessor {
 public:
  // How the classes choose frames and bound sizes: Qwen2-VL's each frame for itself, Qwen3-VL's the whole video.
  enum class Kind : uint8_t { kQwen2, kQwen3 };
  VideoProcessor(Kind kind, const JsonObject& config);

  int64_t frames_per_unit() const { return frames_per_unit_; }
  // Frames are chosen by the times of a grid: of a clip of changing rate, the grid is that of the same clip at a
  // constant rate, at which no frame is shorter than its shortest. Throws as `sample`.
  ShownFrames choose(const VideoTiming& video, const VideoSampling& sampling) const;
  // Indices of the frames to show of a video of constant rate, ascending, at least one. Throws Error(kInput) for a
  // video without frames, and for rates that no video has.
  std::vector<int64_t> sample(const VideoTiming& video, const VideoSampling& sampling) const;
  // The size that n_frames frames of this size get. `bounds`: of a unit. Throws Error(kInput) as smart_resized.
  Extent extent(Extent frame, int64_t n_frames, const TokenBounds& bounds) const;
  // The filter from one to the other.
  Resample resample() const { return settings_.resample; }
  // A unit of frames_per_unit() resized frames, or of fewer, of which the last is repeated. `original`: size of a frame
  // before. Throws Error(kMemory) for too many pixels.
  ImageTiles unit(std::span<const Image> frames, Extent original) const;

 private:
  Kind kind_;
  ProcessorSettings settings_;
  SmartResize rule_;
  ChannelTables tables_;
  int64_t frames_per_unit_ = 2;
  int64_t least_frames_ = 4, most_frames_ = 768;
  int64_t n_frames_ = 0;  // to show; 0: as many as `fps_` says
  double fps_ = 2;
  bool caps_pixels_ = false;
  int64_t capped_tokens_ = 0;
};

// From the checkpoint's settings for videos, or for images where it has none. `model_type` of config.json stands in for
// settings that name no type. Throws Error as load_image_processor.
std::unique_ptr<const VideoProcessor> load_video_processor(const Checkpoint& checkpoint, std::string_view model_type);

}  // namespace vlcache
