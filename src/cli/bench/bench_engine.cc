#include "cli/bench/bench_engine.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {

std::unique_ptr<Engine> bench_engine(const char* command, const ModelFlags& model, const std::string& random_weights,
                                     uint64_t seed) {
  if (model.model_dir.empty() == random_weights.empty()) {
    throw Error(ErrorCode::kInput, std::string(command) + ": expected either -m DIR or --random-weights CONFIG.json");
  }
  if (random_weights.empty()) return load_engine(model, checkpoint_of(model));
  const std::filesystem::path path = random_weights;
  return Engine::random(parse_model_config(load_json(path), path.string()), engine_options(model), seed);
}

}  // namespace vlcache
