#include "model/images/image_tiles.h"

#include <cstring>
#include <string>

#include "base/error.h"

namespace vlcache {

PixelRect part_of(const PixelRect& shown, float size_x, float size_y, const PixelRect& part) {
  const float scale_x = (shown.right - shown.left) / size_x, scale_y = (shown.bottom - shown.top) / size_y;
  return {.left = shown.left + part.left * scale_x,
          .top = shown.top + part.top * scale_y,
          .right = shown.left + part.right * scale_x,
          .bottom = shown.top + part.bottom * scale_y};
}

void ImageTiles::allocate(int64_t n, int64_t tile_height, int64_t tile_width) {
  CHECK(n >= 0 && tile_height > 0 && tile_width > 0 && n_frames > 0);
  if (tile_width > kMaxPixels / tile_height || n > kMaxPixels / (tile_height * tile_width) / n_frames) {
    throw Error(ErrorCode::kMemory, "image processor: " + std::to_string(n * n_frames) + " tile(s) of " +
                                        std::to_string(tile_width) + " x " + std::to_string(tile_height) +
                                        " pixels; the limit is " + std::to_string(kMaxPixels) + " pixels in all");
  }
  pixels = Buffer(n * n_frames * 3 * tile_height * tile_width * int64_t{sizeof(float)});
  n_tiles = n;
  height = tile_height;
  width = tile_width;
}

ImageTiles ImageTiles::copy() const {
  ImageTiles other = without_pixels();
  if (pixels.bytes() == 0) return other;
  other.allocate(n_tiles, height, width);
  std::memcpy(other.pixels.data(), pixels.data(), static_cast<size_t>(pixels.bytes()));
  return other;
}

ImageTiles ImageTiles::without_pixels() const {
  ImageTiles other;
  other.n_tiles = n_tiles, other.height = height, other.width = width, other.n_frames = n_frames;
  other.original_height = original_height, other.original_width = original_width;
  other.tile_rows = tile_rows, other.tile_cols = tile_cols, other.overview = overview;
  other.shown = shown;
  other.unit = unit;
  other.kept = kept;
  other.hashes = hashes;
  return other;
}

bool ImageTiles::operator==(const ImageTiles& other) const {
  return n_tiles == other.n_tiles && height == other.height && width == other.width && n_frames == other.n_frames &&
         original_height == other.original_height && original_width == other.original_width &&
         tile_rows == other.tile_rows && tile_cols == other.tile_cols && overview == other.overview &&
         shown == other.shown && unit == other.unit && kept == other.kept && pixels.bytes() == other.pixels.bytes() &&
         std::memcmp(pixels.data(), other.pixels.data(), static_cast<size_t>(pixels.bytes())) == 0;
}

}  // namespace vlcache
