// From a picture to the pixel values a vision encoder takes: the image processors of Hugging Face checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/image/image.h"
#include "model/image_tiles.h"

namespace vlcache {

// What may still be made of one picture: every resizing and every cut takes the pixels of its result. Sizes that are
// harmless one by one, a request's among them, are not where each of thousands of tiles is resized to them.
class PixelAllowance {
 public:
  // Twelve times what the largest grids of LLaVA-OneVision take, and enough for a square around the largest picture.
  static constexpr int64_t kUsual = int64_t{1} << 28;

  explicit PixelAllowance(int64_t pixels = kUsual) : left_(pixels) {}
  // Throws Error(kMemory) where fewer are left.
  void take(int64_t width, int64_t height);

 private:
  int64_t left_;
};

// Bit-identical to transformers' processors with backend="pil". Const and safe to share between threads.
class ImageProcessor {
 public:
  virtual ~ImageProcessor() = default;
  // Throws Error(kShape / kInput) where the picture and the settings do not fit together, Error(kMemory) where they
  // make too many pixels.
  ImageTiles process(const Image& image, PixelAllowance allowance = PixelAllowance()) const {
    return make_tiles(image, allowance);
  }
  // All settings that influence pixels, in a canonical form: part of the key under which results may be cached.
  virtual std::string settings_key() const = 0;
  // The same with less detail, hence fewer tokens, of what models of this processor know; null where there is none.
  virtual std::unique_ptr<ImageProcessor> coarser() const { return nullptr; }

 private:
  virtual ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const = 0;
};

// Reads processor_config.json ("image_processor" in it) or else preprocessor_config.json. Missing keys have the
// defaults of the class that `image_processor_type` names, with or without Fast or Pil at its end. Throws Error:
// kNotFound (no file), kUnsupported (the type; the message lists those there are), kInput (values that cannot be).
// `model_type` of config.json stands in for settings that name no type.
// Members of `changed`, a JSON object or nothing, are taken instead of the file's: size, do_image_splitting,
// image_grid_pinpoints; others are Error(kInput).
std::unique_ptr<ImageProcessor> load_image_processor(const std::filesystem::path& model_dir,
                                                     std::string_view model_type, std::string_view changed = {});

// The grid pinpoint (height, width) that shows most of a picture and wastes least; LLaVA-NeXT models need it to lay out
// tiles. Throws Error(kInput) if none is usable.
std::pair<int64_t, int64_t> select_best_resolution(int64_t height, int64_t width,
                                                   const std::vector<std::pair<int64_t, int64_t>>& pinpoints);

}  // namespace vlcache
