// Maps image tokens to the image: the family gives a token's row, the tile what it shows, the patch grid which part of
// that.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/family.h"
#include "model/projector.h"

namespace vlcache {
namespace {

std::optional<PixelRect> clipped(const PixelRect& rect, const ImageTiles& image) {
  const auto width = static_cast<float>(image.original_width), height = static_cast<float>(image.original_height);
  const PixelRect out = {.left = std::clamp(rect.left, 0.0f, width),
                         .top = std::clamp(rect.top, 0.0f, height),
                         .right = std::clamp(rect.right, 0.0f, width),
                         .bottom = std::clamp(rect.bottom, 0.0f, height)};
  if (!(out.left < out.right && out.top < out.bottom)) return std::nullopt;
  return out;
}

}  // namespace

std::array<int64_t, 3> image_grid(const ModelConfig& config, const ImageTiles& image) {
  if (!config.vision || !config.vision->traits.any_grid) return {};
  const int64_t patch = config.vision->patch_size;
  return {image.n_tiles, image.height / patch, image.width / patch};
}

std::vector<TokenPlace> token_places(const ModelConfig& config, const ImageTiles& image) {
  if (!config.vision || config.family->token_rows == nullptr) {
    throw Error(ErrorCode::kInput, "an image was given to a model (" + config.model_type + ") that takes text only");
  }
  const VisionConfig& vision = *config.vision;
  const std::vector<int32_t> rows = config.family->token_rows(config, image);
  CHECK(static_cast<int64_t>(image.shown.size()) == image.n_tiles);
  // A tile's rows: the class token if it is kept, then cells of `cell` pixels a side, line by line. Pixels that no
  // patch covers lie to the right and below.
  const int64_t scale = config.projector.scale, cell = vision.patch_size * scale;
  const int64_t n_class = vision.n_class_features();
  const int64_t cols = image.width / vision.patch_size / scale, lines = image.height / vision.patch_size / scale;
  const int64_t per_tile = n_class + lines * cols;
  std::vector<TokenPlace> places(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == kNewlineRow) continue;
    const int64_t cell_row = image.cell_of(rows[i]), tile = cell_row / per_tile, place = cell_row % per_tile - n_class;
    places[i] = {.tile = static_cast<int32_t>(tile), .row = static_cast<int32_t>(rows[i] % per_tile), .rect = {}};
    if (place < 0) continue;
    const auto x = static_cast<float>(place % cols * cell), y = static_cast<float>(place / cols * cell);
    const auto size = static_cast<float>(cell);
    places[i].rect =
        part_of(image.shown[static_cast<size_t>(tile)], static_cast<float>(image.width),
                static_cast<float>(image.height), {.left = x, .top = y, .right = x + size, .bottom = y + size});
  }
  return places;
}

std::vector<std::optional<PixelRect>> token_rects(const ModelConfig& config, const ImageTiles& image) {
  std::vector<std::optional<PixelRect>> rects;
  for (const TokenPlace& place : token_places(config, image)) {
    const bool shown = place.rect && place.tile != image.overview;
    rects.push_back(shown ? clipped(*place.rect, image) : std::nullopt);
  }
  return rects;
}

}  // namespace vlcache
