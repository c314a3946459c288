#include "model/projector.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "model/family.h"

namespace vlcache {
namespace {

int64_t side_of(int64_t n) { return static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(n)))); }

// A square of scale x scale neighbouring rows becomes one row: their columns end to end, line by line.
void pixel_shuffle(Backend& backend, const Tensor& features, int64_t scale, const Tensor& out) {
  const int64_t n_tiles = features.dim(0), n = features.dim(1), width = features.dim(2), side = side_of(n);
  const Tensor flat = features.view({n_tiles * n, width});
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
      backend.gather_rows(flat, rows, out.columns(column, column + width));
    }
  }
}

int64_t mlp_rows(const ProjectorConfig&, int64_t n_features) { return n_features; }

ProjectorWeights load_mlp(WeightLoader& loader, const ModelConfig& config) {
  const int64_t hidden = config.text.hidden_size;
  const std::string p = loader.prefix(config.family->prefixes.projector, "linear_1.weight");
  ProjectorWeights w;
  w.linear1 = loader.matrix(p + "linear_1.weight", hidden, config.vision->feature_size());
  w.linear2 = loader.matrix(p + "linear_2.weight", hidden, hidden);
  if (config.projector.bias) {
    w.bias1 = loader.vector(p + "linear_1.bias", hidden);
    w.bias2 = loader.vector(p + "linear_2.bias", hidden);
  }
  if (config.projector.newline) {
    w.newline = loader.rows(loader.prefix({"", "model."}, "image_newline") + "image_newline", 1, hidden, {hidden});
  }
  return w;
}

void project_mlp(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                 const Tensor& features, const Tensor& out) {
  Buffer memory(out.bytes());
  const Tensor hidden(memory.data(), out.dtype, {out.rows(), out.row_size()});
  const Tensor flat = features.view({features.dim(0) * features.dim(1), features.dim(2)});
  backend.matmul(flat, weights.linear1, hidden, {.bias = or_null(weights.bias1), .act = config.activation});
  backend.matmul(hidden, weights.linear2, out, {.bias = or_null(weights.bias2)});
}

int64_t shuffled_rows(const ProjectorConfig& config, int64_t n_features) {
  const int64_t side = side_of(n_features);
  if (side * side != n_features || side % config.scale != 0) {
    throw Error(ErrorCode::kShape, "pixel shuffle by " + std::to_string(config.scale) +
                                       " (scale_factor in config.json) needs a square of patches it divides, found " +
                                       std::to_string(n_features) +
                                       " patches: the image processor (preprocessor_config.json or "
                                       "processor_config.json) makes tiles of another size");
  }
  return n_features / (config.scale * config.scale);
}

ProjectorWeights load_shuffled(WeightLoader& loader, const ModelConfig& config) {
  const int64_t scale = config.projector.scale;
  const std::string name = "proj.weight";
  ProjectorWeights w;
  w.linear1 = loader.matrix(loader.prefix(config.family->prefixes.projector, name) + name, config.text.hidden_size,
                            config.vision->feature_size() * scale * scale);
  return w;
}

void project_shuffled(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                      const Tensor& features, const Tensor& out) {
  const int64_t width = features.dim(2) * config.scale * config.scale;
  Buffer memory(out.rows() * width * dtype_bytes(features.dtype));
  const Tensor shuffled(memory.data(), features.dtype, {out.rows(), width});
  pixel_shuffle(backend, features, config.scale, shuffled);
  backend.matmul(shuffled, weights.linear1, out);
}

int64_t merged_rows(const ProjectorConfig& config, int64_t n_features) {
  const int64_t area = config.scale * config.scale;
  CHECK(n_features % area == 0);
  return n_features / area;
}

ProjectorWeights load_merger_at(WeightLoader& loader, const ModelConfig& config, const std::string& prefix,
                                const MergerNames& names, int64_t norm_size) {
  const int64_t joined = config.vision->feature_size() * config.projector.scale * config.projector.scale;
  const std::string norm = prefix + std::string(names.norm), fc1 = prefix + std::string(names.fc1),
                    fc2 = prefix + std::string(names.fc2);
  ProjectorWeights w;
  w.norm_w = loader.vector(norm + "weight", norm_size);
  if (!config.projector.rms_norm) w.norm_b = loader.vector(norm + "bias", norm_size);
  w.linear1 = loader.matrix(fc1 + "weight", joined, joined);
  w.bias1 = loader.vector(fc1 + "bias", joined);
  w.linear2 = loader.matrix(fc2 + "weight", config.text.hidden_size, joined);
  w.bias2 = loader.vector(fc2 + "bias", config.text.hidden_size);
  return w;
}

ProjectorWeights load_merger(WeightLoader& loader, const ModelConfig& config) {
  const MergerNames& names = *config.projector.names;
  const std::string p = loader.prefix(config.family->prefixes.projector, std::string(names.fc1) + "weight");
  return load_merger_at(loader, config, p, names, config.vision->feature_size());
}

ProjectorWeights load_merger_tap(WeightLoader& loader, const ModelConfig& config, int64_t tap) {
  const MergerNames& names = *config.projector.names;
  const std::string in_tap = std::string(names.taps) + std::to_string(tap) + ".";
  const std::string p =
      loader.prefix(config.family->prefixes.projector, in_tap + std::string(names.tap_fc1) + "weight");
  const int64_t area = config.projector.scale * config.projector.scale;
  return load_merger_at(loader, config, p + in_tap,
                        {.norm = names.tap_norm, .fc1 = names.tap_fc1, .fc2 = names.tap_fc2},
                        config.vision->hidden_size * area);
}

void norm_rows(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend, const Tensor& x,
               const Tensor& y) {
  if (config.rms_norm) {
    backend.rms_norm(x, weights.norm_w, config.norm_eps, y);
  } else {
    backend.layer_norm(x, weights.norm_w, weights.norm_b, config.norm_eps, y);
  }
}

void merge_rows(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                const Tensor& features, const Tensor& out, bool norm_joined) {
  const int64_t area = config.scale * config.scale, width = features.dim(2), joined = width * area;
  CHECK(features.dense() && out.rows() * area == features.dim(0) * features.dim(1));
  const int64_t bytes = out.rows() * joined * dtype_bytes(features.dtype);
  const Buffer normed_memory(bytes), hidden_memory(bytes);
  const Tensor normed(normed_memory.data(), features.dtype, {out.rows(), joined});
  const Tensor hidden(hidden_memory.data(), features.dtype, {out.rows(), joined});
  const int64_t norm_width = norm_joined ? joined : width, n = features.numel() / norm_width;
  norm_rows(config, weights, backend, features.view({n, norm_width}), normed.view({n, norm_width}));
  backend.matmul(normed, weights.linear1, hidden, {.bias = &weights.bias1, .act = config.activation});
  backend.matmul(hidden, weights.linear2, out, {.bias = &weights.bias2});
}

void project_merged(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                    const Tensor& features, const Tensor& out) {
  merge_rows(config, weights, backend, features, out, /*norm_joined=*/false);
}

void project_merged_tap(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
                        const Tensor& features, const Tensor& out) {
  merge_rows(config, weights, backend, features, out, /*norm_joined=*/true);
}

}  // namespace

const Projector kMlpProjector = {.n_rows = mlp_rows, .load = load_mlp, .project = project_mlp};
const Projector kPixelShuffleProjector = {.n_rows = shuffled_rows, .load = load_shuffled, .project = project_shuffled};
const Projector kMergerProjector = {.by_rows = true,
                                    .n_rows = merged_rows,
                                    .load = load_merger,
                                    .project = project_merged,
                                    .load_tap = load_merger_tap,
                                    .project_tap = project_merged_tap};

}  // namespace vlcache
