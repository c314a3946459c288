// From a picture to the pixel values a vision encoder takes: the image processors of Hugging Face checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/image/image.h"

namespace vlcache {

struct ProcessedImage {
  std::vector<float> pixels;  // [n_tiles, channels, height, width]
  int64_t n_tiles = 0, channels = 3, height = 0, width = 0;
  int64_t original_height = 0, original_width = 0;
  // Idefics3, SmolVLM: the grid of tiles, 0 x 0 if the picture was not split. Tiles go row by row, the whole picture is
  // the last one. LLaVA-NeXT: the grid of the chosen resolution; the whole picture is the first tile.
  int64_t tile_rows = 0, tile_cols = 0;
  int64_t best_height = 0, best_width = 0;  // LLaVA-NeXT: the grid pinpoint that was chosen

  bool operator==(const ProcessedImage&) const = default;
};

// Bit-identical to transformers' processors with backend="pil". Const and safe to share between threads.
class ImageProcessor {
 public:
  virtual ~ImageProcessor() = default;
  // Throws Error(kShape / kInput) where the picture and the settings do not fit together.
  virtual ProcessedImage process(const Image& image) const = 0;
  // All settings that influence pixels, in a canonical form: part of the key under which results may be cached.
  virtual std::string settings_key() const = 0;
};

// Reads processor_config.json ("image_processor" in it) or else preprocessor_config.json. Missing keys have the
// defaults of the class that `image_processor_type` names, with or without Fast or Pil at its end. Throws Error:
// kNotFound (no file), kUnsupported (the type; the message lists those there are), kInput (values that cannot be).
std::unique_ptr<ImageProcessor> load_image_processor(const std::filesystem::path& model_dir);

// The grid pinpoint (height, width) that shows most of a picture and wastes least; LLaVA-NeXT models need it to lay out
// tiles. Throws Error(kInput) if none is usable.
std::pair<int64_t, int64_t> select_best_resolution(int64_t height, int64_t width,
                                                   const std::vector<std::pair<int64_t, int64_t>>& pinpoints);

}  // namespace vlcache
