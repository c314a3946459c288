// EncodedImage and InputImages are the images that a prompt is made of, before they are tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "io/image/image.h"
#include "model/images/cell_dedup.h"

namespace vlcache {

// How an image is to be shown to the model; by default as the checkpoint specifies.
struct ImageOptions {
  // Bounds on the image's tokens; 0: none. Of the checkpoint's ways, the finest within the bounds is used.
  int32_t min_tokens = 0, max_tokens = 0;
  bool least_detail = false;  // the coarsest way
  // A JSON object of settings of the checkpoint's image processor to change; empty: none.
  std::string settings;
  // Cells that their neighbours predict are dropped before the encoder.
  std::optional<CellDedup> dedup;
  // Of each later unit of a video, the share of cells that changed least since the one before is dropped: 0 to 1.
  float video_prune = 0;
  bool compared = false;  // with other images, cell by cell (ImageTiles::hashes)
};

// An image as its file encodes it. It is decoded only when its pixels are needed.
struct EncodedImage {
  std::shared_ptr<const std::vector<std::byte>> bytes;
  std::string where;  // its name in errors
  ImageLimits limits;
  ImageOptions options;
  std::string owner;  // what is remembered of the image helps no other owner
  std::string text;   // stands after the image in messages: what a page of a document says; empty: nothing
};

// Reads a file. Throws Error as read_image_file does.
EncodedImage read_encoded_image(const std::filesystem::path& path);

using InputImages = std::variant<std::vector<Image>, std::vector<EncodedImage>>;

}  // namespace vlcache
