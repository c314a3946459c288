// ImageProcessor: computes from an image the pixel values a vision encoder reads, as the image processors of Hugging
// Face checkpoints do.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/image/image.h"
#include "model/images/image_tiles.h"
#include "model/processors/settings.h"

namespace vlcache {

class Checkpoint;

// Pixels that may still be produced from one image: every resizing and every cut costs the pixels of its result. A size
// that is harmless once, also one from a request, is not harmless when each of thousands of tiles is resized to it.
class PixelAllowance {
 public:
  // Twelve times the largest grids of LLaVA-OneVision, and enough for a square around the largest image.
  static constexpr int64_t kUsual = int64_t{1} << 28;

  explicit PixelAllowance(int64_t pixels = kUsual) : left_(pixels) {}
  // Throws Error(kMemory) if fewer pixels are left.
  void take(int64_t width, int64_t height);

 private:
  int64_t left_;
};

// Bit-identical to transformers' processors with backend="pil". Const and safe to share between threads.
class ImageProcessor {
 public:
  virtual ~ImageProcessor() = default;
  // Throws Error(kShape / kInput) if the image and the settings do not fit together, Error(kMemory) if they produce too
  // many pixels.
  ImageTiles process(const Image& image, PixelAllowance allowance = PixelAllowance()) const {
    return make_tiles(image, allowance);
  }
  // All settings that influence pixels, in a canonical form: part of the key under which results may be cached.
  virtual std::string settings_key() const = 0;
  // A processor with less detail, hence fewer tokens, in a form that models of this processor support; null if there is
  // none.
  virtual std::unique_ptr<ImageProcessor> coarser() const { return nullptr; }
  // The same with these bounds, where the settings bound the tokens of an image whatever its size; null elsewhere. An
  // extreme aspect ratio, or no number of tokens between the bounds, may leave an image outside them.
  virtual std::unique_ptr<ImageProcessor> bounded(const TokenBounds&) const { return nullptr; }
  // The longer side, in pixels, to which a page of width x height points is resized before it is cut into tiles: drawn
  // larger, it shows the model no more. Both are > 0. A processor without a rule of its own gets 2048, as many pixels
  // as a page is drawn with at most.
  virtual int64_t longer_side(double /*width*/, double /*height*/) const { return 2048; }
  // Of each channel's values, from black to white.
  virtual std::array<float, 3> value_range() const = 0;

 private:
  virtual ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const = 0;
};

// From the checkpoint's image settings. Missing keys have the defaults of the class that `image_processor_type` names,
// with or without Fast or Pil at its end. Throws Error: kNotFound (no settings), kUnsupported (the type; the message
// lists the known ones), kInput (invalid values). `model_type` of config.json stands in for settings that name no type.
// Members of `changed`, a JSON object or nothing, override the checkpoint's: size, min_pixels, max_pixels,
// do_image_splitting, image_grid_pinpoints; others are Error(kInput).
std::unique_ptr<ImageProcessor> load_image_processor(const Checkpoint& checkpoint, std::string_view model_type,
                                                     std::string_view changed = {});

// The grid pinpoint (height, width) that shows most of an image and wastes least; LLaVA-NeXT models need it to lay out
// tiles. Throws Error(kInput) if none is usable.
std::pair<int64_t, int64_t> select_best_resolution(int64_t height, int64_t width,
                                                   const std::vector<std::pair<int64_t, int64_t>>& pinpoints);

}  // namespace vlcache
