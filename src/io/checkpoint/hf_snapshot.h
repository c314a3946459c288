// Snapshot: the files of a Hugging Face snapshot directory, and how to open them.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "io/safetensors.h"

namespace vlcache {

class Snapshot {
 public:
  // Throws Error(kNotFound) if `dir` is no directory or has no config.json.
  explicit Snapshot(std::filesystem::path dir);

  const std::filesystem::path& dir() const { return dir_; }
  std::filesystem::path path(std::string_view file) const { return dir_ / file; }
  bool has(std::string_view file) const;
  Json json(std::string_view file) const;                          // Error(kNotFound) if missing
  std::optional<Json> optional_json(std::string_view file) const;  // empty if missing
  // model.safetensors, or the shards of model.safetensors.index.json. Throws Error(kNotFound) naming both.
  Safetensors weights() const;

 private:
  std::filesystem::path dir_;
};

}  // namespace vlcache
