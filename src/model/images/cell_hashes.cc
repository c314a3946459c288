#include "model/images/cell_hashes.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "base/error.h"
#include "base/sha256.h"
#include "model/family.h"

namespace vlcache {
namespace {

// A tile's lines and columns of tokens.
struct CellGrid {
  CellGrid(const ModelConfig& config, const ImageTiles& image)
      : cell(config.vision->patch_size * config.projector.scale),
        lines(image.height / cell),
        cols(image.width / cell),
        n_class(config.vision->n_class_features()) {}
  // The number of a token's cell in its tile; -1: it has none.
  int64_t cell_of(const TokenPlace& place) const { return place.tile < 0 ? -1 : place.row - n_class; }

  int64_t cell, lines, cols, n_class;
};

uint64_t hash_of(const ImageTiles& image, const CellGrid& grid, int64_t tile, int64_t cell) {
  Sha256 hash;
  const float* pixels = reinterpret_cast<const float*>(image.pixels.data());
  const int64_t n_planes = image.n_frames * 3, top = cell / grid.cols * grid.cell, left = cell % grid.cols * grid.cell;
  for (int64_t plane = 0; plane < n_planes; ++plane) {
    const float* line = pixels + ((tile * n_planes + plane) * image.height + top) * image.width + left;
    for (int64_t y = 0; y < grid.cell; ++y, line += image.width)
      hash.add(std::as_bytes(std::span(line, static_cast<size_t>(grid.cell))));
  }
  const Sha256Digest digest = hash.finish();
  uint64_t value = 0;
  std::memcpy(&value, digest.data(), sizeof(value));
  return value;
}

}  // namespace

std::vector<uint64_t> cell_hashes(const ModelConfig& config, const ImageTiles& image) {
  if (image.kept) return {};
  CHECK(image.pixels.bytes() == image.tensor().bytes());
  const CellGrid grid(config, image);
  std::vector<uint64_t> hashes;
  for (const TokenPlace& place : token_places(config, image)) {
    const int64_t cell = grid.cell_of(place);
    hashes.push_back(cell < 0 ? 0 : hash_of(image, grid, place.tile, cell));
  }
  return hashes;
}

std::vector<bool> changed_tokens(const ModelConfig& config, const ImageTiles& shape, const std::vector<uint64_t>& a,
                                 const std::vector<uint64_t>& b) {
  const CellGrid grid(config, shape);
  const std::vector<TokenPlace> places = token_places(config, shape);
  CHECK(a.size() == places.size() && b.size() == places.size());
  std::vector<std::vector<bool>> near(static_cast<size_t>(shape.n_tiles));  // by tile and cell
  for (std::vector<bool>& tile : near) tile.resize(static_cast<size_t>(grid.lines * grid.cols));
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t cell = grid.cell_of(places[i]);
    if (cell < 0 || a[i] == b[i]) continue;
    const int64_t line = cell / grid.cols, col = cell % grid.cols;
    for (int64_t y = std::max<int64_t>(line - 1, 0); y <= std::min(line + 1, grid.lines - 1); ++y) {
      for (int64_t x = std::max<int64_t>(col - 1, 0); x <= std::min(col + 1, grid.cols - 1); ++x)
        near[static_cast<size_t>(places[i].tile)][static_cast<size_t>(y * grid.cols + x)] = true;
    }
  }
  std::vector<bool> changed;
  for (const TokenPlace& place : places) {
    const int64_t cell = grid.cell_of(place);
    const bool is_class = place.tile >= 0 && cell < 0;
    changed.push_back(is_class ? a != b
                               : cell >= 0 && near[static_cast<size_t>(place.tile)][static_cast<size_t>(cell)]);
  }
  return changed;
}

}  // namespace vlcache
