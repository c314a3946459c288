// From vision features to rows of the language model's input.
#pragma once

#include "base/tensor.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace vlcache {

// Rows that the `n_features` feature rows of one tile become. Throws Error(kShape) where pixel shuffle cannot cut them.
int64_t projected_rows(const ProjectorConfig& config, int64_t n_features);

// features [n_tiles * n, feature_size], tile after tile -> out [n_tiles * projected_rows(n), text hidden], both compute
// dtype.
void project(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend, const Tensor& features,
             int64_t n_tiles, const Tensor& out);

}  // namespace vlcache
