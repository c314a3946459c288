// VideoReader turns a video into images of a prompt, one for each unit of frames.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/prompt/input_media.h"
#include "engine/prompt/prompt.h"
#include "model/model.h"

namespace vlcache {

// May be used by any thread.
class VideoReader {
 public:
  // The model outlives this.
  VideoReader(const Model& model, std::shared_ptr<const VideoProcessor> processor)
      : model_(model), processor_(std::move(processor)) {}

  // Appends the units of a video to the images of a prompt, with their keys, and without pixels: what is held is the
  // resized frames, 8 bits a channel. ImageOptions::video_prune drops cells of units (KeptCells). Before a frame is
  // read, throws Error(kInput) for options that this video cannot satisfy and for more positions than the model's
  // context has, Error(kMemory) for more than kMaxHeldBytes; else what reading throws.
  void read(const InputVideo& video, Prompt& prompt) const;
  static constexpr int64_t kMaxHeldBytes = int64_t{1} << 30;

 private:
  // Which frames are shown, and their size.
  ShownFrames choose_frames(const InputVideo& video, Extent& size) const;
  // Positions from the first unit to unit k (Family::unit_time); 0: other tokens stand between units.
  int32_t unit_time(const ShownFrames& shown, size_t k) const;
  std::vector<Image> read_frames(const InputVideo& video, std::span<const int64_t> indices, Extent to) const;
  void check_size(const InputVideo& video, Extent extent, int64_t n_units, const ShownFrames& shown) const;

  const Model& model_;
  const std::shared_ptr<const VideoProcessor> processor_;  // prompts need it to make pixels again
};

}  // namespace vlcache
