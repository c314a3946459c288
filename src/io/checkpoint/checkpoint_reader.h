// CheckpointReader: a format of checkpoints. A new one is a file that implements it, and a line in checkpoint.cc.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "io/checkpoint/checkpoint.h"
#include "io/safetensors.h"
#include "io/tokenizer/tokenizer_config.h"

namespace vlcache {

// JSON, and its name in errors.
struct NamedJson {
  Json json;
  std::string where;
};

// Each function reads its part again, and means what the function of Checkpoint with the same name means. Any thread.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;
  virtual std::string where() const = 0;
  virtual std::filesystem::path companion(std::string_view name) const = 0;
  virtual std::string fingerprint() const = 0;
  virtual NamedJson config() const = 0;
  virtual std::optional<Json> generation_config() const = 0;
  virtual NamedJson image_settings() const = 0;
  virtual NamedJson video_settings() const = 0;
  virtual Safetensors tensors() const = 0;
  virtual TokenizerText tokenizer() const = 0;
  virtual TokenizerConfig tokenizer_config() const = 0;
  virtual std::map<std::string, std::string> chat_templates() const = 0;
};

}  // namespace vlcache
