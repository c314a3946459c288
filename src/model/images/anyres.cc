// The arithmetic is that of transformers' unpad_image, whose roundings decide the number of tokens.
#include "model/images/anyres.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "model/family.h"
#include "model/processors/image_processor.h"

namespace vlcache {
namespace {

// int(round(x, 7)) of Python: correctly rounded to seven decimals, as printf does, then truncated.
int64_t cut_after_7(double x) {
  char text[64];
  std::snprintf(text, sizeof text, "%.7f", x);
  return static_cast<int64_t>(std::strtod(text, nullptr));
}

}  // namespace

PatchRect unpadded_patches(int64_t height, int64_t width, int64_t grid_height, int64_t grid_width) {
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  const auto gh = static_cast<double>(grid_height), gw = static_cast<double>(grid_width);
  if (w / h > gw / gh) {
    const int64_t padding = (grid_height - cut_after_7(h * (gw / w))) / 2;
    return {.top = padding, .bottom = grid_height - padding, .left = 0, .right = grid_width};
  }
  const int64_t padding = (grid_width - cut_after_7(w * (gh / h))) / 2;
  return {.top = 0, .bottom = grid_height, .left = padding, .right = grid_width - padding};
}

AnyresLayout anyres_layout(const ModelConfig& config, const ImageTiles& image) {
  if (image.original_height < 1 || image.original_width < 1)
    throw Error(ErrorCode::kInput, "an image without a size cannot be laid out");
  const int64_t tile = config.vision->image_size, side = config.vision->side();
  const std::pair grid(image.tile_rows * tile, image.tile_cols * tile);
  const bool known = std::ranges::find(config.grid_pinpoints, grid) != config.grid_pinpoints.end();
  if (!known || image.n_tiles != 1 + image.tile_rows * image.tile_cols) {
    throw Error(ErrorCode::kInput, "image of " + std::to_string(image.original_height) + " x " +
                                       std::to_string(image.original_width) + " pixels: expected tiles of a grid of " +
                                       "config.json's image_grid_pinpoints, the image processor made " +
                                       std::to_string(image.tile_rows) + " x " + std::to_string(image.tile_cols) +
                                       " of " + std::to_string(tile) + " pixels, and " + std::to_string(image.n_tiles) +
                                       " in all");
  }
  AnyresLayout layout{.tile_rows = image.tile_rows, .tile_cols = image.tile_cols, .rect = {}};
  layout.rect =
      unpadded_patches(image.original_height, image.original_width, layout.tile_rows * side, layout.tile_cols * side);
  return layout;
}

std::vector<int32_t> anyres_order(const AnyresLayout& layout, int64_t side) {
  const PatchRect& rect = layout.rect;
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(side * side + (rect.bottom - rect.top) * (rect.right - rect.left + 1)));
  for (int64_t i = 0; i < side * side; ++i) order.push_back(static_cast<int32_t>(i));
  for (int64_t y = rect.top; y < rect.bottom; ++y) {
    for (int64_t x = rect.left; x < rect.right; ++x) {
      const int64_t tile = 1 + y / side * layout.tile_cols + x / side;
      order.push_back(static_cast<int32_t>(tile * side * side + y % side * side + x % side));
    }
    order.push_back(kNewlineRow);
  }
  return order;
}

}  // namespace vlcache
