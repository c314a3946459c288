// The pictures that a prompt is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "io/image/image.h"

namespace vlcache {

// How a picture is to be shown to the model; by itself, as the checkpoint says.
struct PictureOptions {
  // Bounds on the tokens of its pixels; 0: none. The finest of the checkpoint's ways that is within them.
  int32_t min_tokens = 0, max_tokens = 0;
  bool least_detail = false;  // the coarsest way
  // A JSON object of settings of the checkpoint's image processor that are to be others; empty: none.
  std::string settings;
};

// As a file has it. It is decoded only when somebody needs its pixels.
struct EncodedPicture {
  std::shared_ptr<const std::vector<std::byte>> bytes;
  std::string where;  // in errors, what it is called
  ImageLimits limits;
  PictureOptions options;
  std::string owner;  // what is remembered of it helps nobody else
};

// Of a file. Throws Error as read_image_file does.
EncodedPicture read_picture(const std::filesystem::path& path);

using Pictures = std::variant<std::vector<Image>, std::vector<EncodedPicture>>;

}  // namespace vlcache
