// Projector: maps vision features to rows of the language model's input. A family names one of these values, or brings
// its own.
#pragma once

#include "base/tensor.h"
#include "model/config.h"
#include "model/weights/weight_loader.h"
#include "model/weights/weights.h"
#include "ops/backend.h"

namespace vlcache {

// Names of a merger's tensors after the projector's prefix. A module's name ends with a dot.
struct MergerNames {
  std::string_view norm, fc1, fc2;
  std::string_view taps = {};  // before the number of a tap, whose names follow
  std::string_view tap_norm = {}, tap_fc1 = {}, tap_fc2 = {};
};

struct Projector {
  // Each projected row depends on its own features only, which are consecutive: a large image is projected in pieces.
  bool by_rows = false;
  // Rows that the `n_features` feature rows of one tile become. Throws Error(kShape) if that number is not accepted.
  int64_t (*n_rows)(const ProjectorConfig& config, int64_t n_features);
  ProjectorWeights (*load)(WeightLoader& loader, const ModelConfig& config);
  // features [n_tiles, n, feature_size] -> out [n_tiles * n_rows(n), text hidden], both compute dtype.
  void (*project)(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                  const Tensor& features, const Tensor& out);
  // The same of a tap (VisionConfig::tap_layers). Null: encoders with taps are not supported.
  ProjectorWeights (*load_tap)(WeightLoader& loader, const ModelConfig& config, int64_t tap) = nullptr;
  void (*project_tap)(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                      const Tensor& features, const Tensor& out) = nullptr;
};

// LLaVA: two linear layers with an activation between.
extern const Projector kMlpProjector;
// Idefics3: a square of scale x scale neighbours becomes one row, then one linear layer. Tiles must be square.
extern const Projector kPixelShuffleProjector;
// The Qwen-VL families: a norm, then scale x scale neighbours, which are consecutive features (VisionConfig::merge),
// become one row, then two linear layers. Of taps, the norm is that of the joined row.
extern const Projector kMergerProjector;

}  // namespace vlcache
