// LLaVA's two linear layers; Idefics3's pixel shuffle and one.
#include "model/projector.h"

#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"

namespace vlcache {
namespace {

const Tensor* or_null(const Tensor& t) { return t.empty() ? nullptr : &t; }

int64_t side_of(int64_t n) { return static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(n)))); }

// A square of scale x scale neighbouring rows becomes one row: their columns end to end, line by line.
void pixel_shuffle(Backend& backend, const Tensor& features, int64_t n_tiles, int64_t scale, const Tensor& out) {
  const int64_t width = features.row_size(), n = features.rows() / n_tiles, side = side_of(n);
  std::vector<int32_t> rows(static_cast<size_t>(out.rows()));
  for (int64_t dy = 0; dy < scale; ++dy) {
    for (int64_t dx = 0; dx < scale; ++dx) {
      size_t at = 0;
      for (int64_t tile = 0; tile < n_tiles; ++tile) {
        for (int64_t y = dy; y < side; y += scale) {
          for (int64_t x = dx; x < side; x += scale) rows[at++] = static_cast<int32_t>(tile * n + y * side + x);
        }
      }
      const int64_t column = (dy * scale + dx) * width;
      backend.gather_rows(features, rows, out.columns(column, column + width));
    }
  }
}

}  // namespace

int64_t projected_rows(const ProjectorConfig& config, int64_t n_features) {
  if (config.kind == ProjectorKind::kMlp) return n_features;
  const int64_t side = side_of(n_features);
  if (side * side != n_features || side % config.scale != 0) {
    throw Error(ErrorCode::kShape, "pixel shuffle by " + std::to_string(config.scale) +
                                       " needs a square of patches it divides, found " + std::to_string(n_features) +
                                       " patches");
  }
  return n_features / (config.scale * config.scale);
}

void project(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend, const Tensor& features,
             int64_t n_tiles, const Tensor& out) {
  if (n_tiles == 0) return;
  CHECK(out.rows() == n_tiles * projected_rows(config, features.rows() / n_tiles));
  if (config.kind == ProjectorKind::kPixelShuffle) {
    const int64_t width = features.row_size() * config.scale * config.scale;
    Buffer memory(out.rows() * width * dtype_bytes(features.dtype));
    const Tensor shuffled(memory.data(), features.dtype, {out.rows(), width});
    pixel_shuffle(backend, features, n_tiles, config.scale, shuffled);
    backend.matmul(shuffled, weights.linear1, out);
    return;
  }
  Buffer memory(out.bytes());
  const Tensor hidden(memory.data(), out.dtype, {out.rows(), out.row_size()});
  backend.matmul(features, weights.linear1, hidden, {.bias = or_null(weights.bias1), .act = config.activation});
  backend.matmul(hidden, weights.linear2, out, {.bias = or_null(weights.bias2)});
}

}  // namespace vlcache
