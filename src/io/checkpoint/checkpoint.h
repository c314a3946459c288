// Checkpoint: what a model brings, whatever the format of its files: configuration, tensors, tokenizer, chat templates,
// settings of its image processor.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/contracts/model_files.h"
#include "base/json.h"

namespace vlcache {

class CheckpointReader;
class Safetensors;
struct TokenizerConfig;

// The text of a tokenizer.json, and its name in errors.
struct TokenizerText {
  std::string json, where;
};

// Any thread. Copies are cheap and share the parts that were read: the command, its engine and the engine's image
// processors use a checkpoint, each for its own time.
class Checkpoint : public ModelFiles {
 public:
  // Chooses the reader for `path`, which may look at config.json, and reads nothing else: each part is read when it is
  // first needed, so that a part which is missing or damaged is an error only there. `tokenizer`: the folder whose
  // tokenizer and chat templates count; empty: the files of `path`.
  explicit Checkpoint(const std::filesystem::path& path, const std::filesystem::path& tokenizer = {});
  explicit Checkpoint(std::unique_ptr<const CheckpointReader> reader);

  std::string where() const override;
  std::filesystem::path companion(std::string_view name) const override;
  std::string fingerprint() const override;

  // ---- read once; the results refer to the checkpoint ---------------------------------------------------------
  // As in config.json. Throws Error(kNotFound) if `path` is no model.
  JsonObject config() const;
  // As in generation_config.json; null if the model has none.
  const Json* generation_config() const;
  // As in preprocessor_config.json. Throws Error(kNotFound) if the model has none.
  JsonObject image_settings() const;
  // As in video_preprocessor_config.json; a model without one has image_settings().
  JsonObject video_settings() const;
  // Mapped as long as a result lives, so that a loaded model does not count twice. Throws Error(kNotFound) if the model
  // has none.
  std::shared_ptr<const Safetensors> tensors() const;

  // ---- read by every call: large, and of use to one module each -----------------------------------------------------
  // Throws Error(kNotFound) if the model has none.
  TokenizerText tokenizer() const;
  TokenizerConfig tokenizer_config() const;
  // Sources by name, as choose_chat_template expects them. Empty if the model has none.
  std::map<std::string, std::string> chat_templates() const;

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

}  // namespace vlcache
