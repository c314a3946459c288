// InputMedia is what a prompt is made of besides text: images, and videos whose frames are read when it is known which
// are shown.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/prompt/encoded_image.h"
#include "model/processors/video_processor.h"

namespace vlcache {

struct InputVideo {
  // Calls take(frame) with each of the frames `indices`, which ascend, one by one: each is resized at once. Throws
  // Error.
  using Take = std::function<void(Image frame)>;
  using ReadFrames = std::function<void(std::span<const int64_t> indices, const Take& take)>;

  std::string where;  // its name in errors
  VideoTiming timing;
  int64_t width = 0, height = 0;  // of its frames
  ReadFrames read;
  VideoSampling sampling;
  // The bounds count the tokens of a unit, which has as many as an image of the size of its frames. `settings`, `dedup`
  // and `compared` change nothing of videos.
  ImageOptions options;
};

struct InputMedia {
  InputMedia() = default;
  InputMedia(InputImages i, std::vector<InputVideo> v = {})  // NOLINT: implicit, images are the usual case
      : images(std::move(i)), videos(std::move(v)) {}
  InputMedia(std::vector<Image> i) : images(std::move(i)) {}         // NOLINT: likewise
  InputMedia(std::vector<EncodedImage> i) : images(std::move(i)) {}  // NOLINT: likewise

  InputImages images;              // in the order of their placeholders
  std::vector<InputVideo> videos;  // likewise
};

}  // namespace vlcache
