// From vision features to rows of the language model's input.
#pragma once

#include "base/buffer.h"
#include "model/config.h"
#include "model/image_tiles.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace vlcache {

// Rows that `n_features` feature rows of one tile become.
int64_t projected_rows(const ProjectorConfig& config, int64_t n_features);

// features [n_tiles * n, feature_size] -> out [n_tiles * projected_rows(n), text hidden]; n rows per tile, square for
// kPixelShuffle.
void project(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend, const Tensor& features,
             int64_t n_tiles, const Tensor& out);

}  // namespace vlcache
