#include "model/processors/steps.h"

#include <cmath>
#include <string>

#include "base/error.h"

namespace vlcache {
namespace {

Placed center_crop(const Image& image, const PixelRect& shown, Extent extent, PixelAllowance& allowance) {
  // Halves of odd differences round down, also below zero.
  const int64_t top = (image.height - extent.height) >> 1, left = (image.width - extent.width) >> 1;
  return cut_placed(image, shown, {.x = left, .y = top, .width = extent.width, .height = extent.height}, allowance);
}

}  // namespace

void PixelAllowance::take(int64_t width, int64_t height) {
  if (width <= 0 || height <= 0) return;  // an invalid size; the step that would produce it throws
  if (width > left_ / height) {
    throw Error(ErrorCode::kMemory, "image processor: its sizes make too much of one image: " + std::to_string(width) +
                                        " x " + std::to_string(height) + " pixels at a step, where " +
                                        std::to_string(left_) + " were left");
  }
  left_ -= width * height;
}

PixelRect whole_of(const Image& image) {
  return {.right = static_cast<float>(image.width), .bottom = static_cast<float>(image.height)};
}

Image resize_to(const Image& image, Extent extent, Resample filter, PixelAllowance& allowance) {
  allowance.take(extent.width, extent.height);
  return resize(image, extent.width, extent.height, filter);
}

Placed cut_placed(const Image& image, const PixelRect& shown, const CutOut& part, PixelAllowance& allowance,
                  Rgb colour) {
  allowance.take(part.width, part.height);
  const PixelRect rect = {.left = static_cast<float>(part.x),
                          .top = static_cast<float>(part.y),
                          .right = static_cast<float>(part.x + part.width),
                          .bottom = static_cast<float>(part.y + part.height)};
  return {cut_out(image, part, colour),
          part_of(shown, static_cast<float>(image.width), static_cast<float>(image.height), rect)};
}

Placed resize_and_crop(const Image& image, const PixelRect& shown, const ProcessorSettings& settings,
                       PixelAllowance& allowance) {
  Placed out{image, shown};
  if (settings.do_resize) {
    out.image =
        resize_to(image, resized_extent({image.height, image.width}, settings.size), settings.resample, allowance);
  }
  if (!settings.do_center_crop) return out;
  return center_crop(out.image, shown, {settings.crop_size.height, settings.crop_size.width}, allowance);
}

ChannelTables value_tables(const ProcessorSettings& settings) {
  ChannelTables tables{};
  for (size_t c = 0; c < 3; ++c) {
    const float mean = static_cast<float>(settings.image_mean[c]), std = static_cast<float>(settings.image_std[c]);
    for (int v = 0; v < 256; ++v) {
      // Scaled in double, then rounded; normalised in float.
      float value = static_cast<float>(v);
      if (settings.do_rescale) value = static_cast<float>(static_cast<double>(v) * settings.rescale_factor);
      if (settings.do_normalize) value = (value - mean) / std;
      tables[c][static_cast<size_t>(v)] = value;
    }
  }
  return tables;
}

std::array<float, 3> range_of(const ChannelTables& tables) {
  std::array<float, 3> range{};
  for (size_t c = 0; c < range.size(); ++c) range[c] = std::abs(tables[c].back() - tables[c].front());
  return range;
}

ImageTiles begin_tiles(const Image& image, int64_t n_tiles) {
  constexpr int64_t kMaxTiles = 4096;  // checkpoints have some hundred at most
  if (n_tiles > kMaxTiles) {
    throw Error(ErrorCode::kMemory, "image processor: its sizes cut an image of " + std::to_string(image.width) +
                                        " x " + std::to_string(image.height) + " into " + std::to_string(n_tiles) +
                                        " tiles; at most " + std::to_string(kMaxTiles) + " are taken");
  }
  ImageTiles out;
  out.n_tiles = n_tiles;
  out.original_height = image.height;
  out.original_width = image.width;
  return out;
}

void append_tile(const Placed& tile, const ChannelTables& tables, ImageTiles* out) {
  const Image& image = tile.image;
  if (out->shown.empty()) {
    out->allocate(out->n_tiles, image.height, image.width);
  } else if (image.height != out->height || image.width != out->width) {
    throw Error(ErrorCode::kShape, "image processor: tile " + std::to_string(out->shown.size()) + " is " +
                                       std::to_string(image.height) + " x " + std::to_string(image.width) +
                                       ", the first one " + std::to_string(out->height) + " x " +
                                       std::to_string(out->width) + "; resizing or cropping must make them equal");
  }
  const auto i = static_cast<int64_t>(out->shown.size());
  CHECK(i < out->n_tiles);
  to_planes(image, tables, {out->tensor().row<float>(i), static_cast<size_t>(3 * image.height * image.width)});
  out->shown.push_back(tile.shown);
}

}  // namespace vlcache
