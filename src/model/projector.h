// Projector: maps vision features to rows of the language model's input. A family names one of these values, or brings
// its own.
#pragma once

#include "base/tensor.h"
#include "model/config.h"
#include "model/weight_loader.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace vlcache {

struct Projector {
  // Rows that the `n_features` feature rows of one tile become. Throws Error(kShape) if that number is not accepted.
  int64_t (*n_rows)(const ProjectorConfig& config, int64_t n_features);
  ProjectorWeights (*load)(WeightLoader& loader, const ModelConfig& config);
  // features [n_tiles, n, feature_size] -> out [n_tiles * n_rows(n), text hidden], both compute dtype.
  void (*project)(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                  const Tensor& features, const Tensor& out);
};

// LLaVA: two linear layers with an activation between.
extern const Projector kMlpProjector;
// Idefics3: a square of scale x scale neighbours becomes one row, then one linear layer. Tiles must be square.
extern const Projector kPixelShuffleProjector;

}  // namespace vlcache
