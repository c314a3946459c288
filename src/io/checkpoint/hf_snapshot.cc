#include "io/checkpoint/hf_snapshot.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace vlcache {

Snapshot::Snapshot(std::filesystem::path dir) : dir_(std::move(dir)) {
  std::error_code ec;
  if (!std::filesystem::is_directory(dir_, ec)) {
    throw Error(ErrorCode::kNotFound, dir_.string() + ": expected a model directory (config.json, tokenizer.json, " +
                                          "model.safetensors, ...), found no such directory");
  }
  if (!has("config.json")) throw Error(ErrorCode::kNotFound, dir_.string() + ": no config.json: not a model directory");
}

bool Snapshot::has(std::string_view file) const {
  std::error_code ec;
  return std::filesystem::is_regular_file(path(file), ec);
}

Json Snapshot::json(std::string_view file) const { return load_json(path(file)); }

std::optional<Json> Snapshot::optional_json(std::string_view file) const {
  if (!has(file)) return std::nullopt;
  return json(file);
}

Safetensors Snapshot::weights() const {
  if (has("model.safetensors")) return Safetensors::open(path("model.safetensors"));
  if (has("model.safetensors.index.json")) return Safetensors::open_index(path("model.safetensors.index.json"));
  throw Error(ErrorCode::kNotFound,
              dir_.string() + ": neither model.safetensors nor model.safetensors.index.json is there (other formats " +
                  "of weights are not read)");
}

}  // namespace vlcache
