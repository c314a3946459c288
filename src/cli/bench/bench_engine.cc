#include "cli/bench/bench_engine.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "model/processors/registry.h"
#include "model/weights/tensor_source.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

void check_names_one(const char* command, const ModelFlags& model, const std::string& random_weights) {
  if (!random_weights.empty() && !model.calibrate.empty()) {
    throw Error(ErrorCode::kInput, std::string(command) + ": --calibrate goes with -m: random weights have no prompts");
  }
  if (model.model_dir.empty() != random_weights.empty()) return;
  throw Error(ErrorCode::kInput, std::string(command) + ": expected either -m DIR or --random-weights CONFIG.json");
}

ModelConfig config_of(const std::filesystem::path& path) { return parse_model_config(load_json(path), path.string()); }

}  // namespace

int64_t bench_weight_bytes(const char* command, const ModelFlags& model, const std::string& random_weights) {
  check_names_one(command, model, random_weights);
  ModelFlags no_tiers = model;
  no_tiers.cache = {};
  const EngineOptions options = engine_options(no_tiers);
  const auto backend_for = [&](const ModelConfig& config) {
    return make_backend(options.backend, compute_dtype_of(config, options.dtype), options.backend_options);
  };
  if (random_weights.empty()) {
    const Checkpoint checkpoint = checkpoint_of(model);
    const ModelConfig config = Model::read_config(checkpoint);
    return Model::list(checkpoint, config, *backend_for(config), options.weights, false).weights.bytes;
  }
  const ModelConfig config = config_of(random_weights);
  return list_weights(config, shape_source(!config.text.tied_embeddings), *backend_for(config), options.weights).bytes;
}

std::unique_ptr<Engine> bench_engine(const char* command, const ModelFlags& model, const std::string& random_weights,
                                     uint64_t seed) {
  check_names_one(command, model, random_weights);
  if (random_weights.empty()) return load_engine(model, checkpoint_of(model));
  return Engine::random(config_of(random_weights), engine_options(model), seed);
}

std::unique_ptr<ImageProcessor> bench_image_processor(const ModelFlags& model, const std::string& random_weights,
                                                      const ModelConfig& config) {
  if (random_weights.empty()) return load_image_processor(checkpoint_of(model), config.model_type);
  const Json json = load_json(random_weights);
  const JsonObject shape(json, random_weights);
  if (shape.has("image_processor")) return make_image_processor(shape.object("image_processor"), config.model_type);
  return load_image_processor(Checkpoint(std::filesystem::path(random_weights).parent_path()), config.model_type);
}

}  // namespace vlcache
