#include "io/checkpoint/checkpoint.h"

#include <mutex>

#include "io/checkpoint/checkpoint_reader.h"
#include "io/checkpoint/hf_snapshot.h"
#include "io/checkpoint/nanovlm_snapshot.h"

namespace vlcache {
namespace {

// A part that is read when it is first needed. After an error the next caller reads it again.
template <typename T>
class Once {
 public:
  template <typename Read>
  const T& get(const Read& read) {
    const std::lock_guard lock(mutex_);
    if (!value_) value_.emplace(read());
    return *value_;
  }

 private:
  std::mutex mutex_;
  std::optional<T> value_;
};

}  // namespace

struct Checkpoint::Parts {
  explicit Parts(std::unique_ptr<const CheckpointReader> r) : reader(std::move(r)) {}

  const std::unique_ptr<const CheckpointReader> reader;
  Once<NamedJson> config, image_settings, video_settings;
  Once<std::optional<Json>> generation_config;
  Once<std::string> fingerprint;
  std::mutex tensors_mutex;
  std::weak_ptr<const Safetensors> tensors;
};

Checkpoint::Checkpoint(const std::filesystem::path& path, const std::filesystem::path& tokenizer)
    : Checkpoint(is_nanovlm_snapshot(path) ? read_nanovlm_snapshot(path, tokenizer)
                                           : read_hf_snapshot(path, tokenizer)) {}

Checkpoint::Checkpoint(std::unique_ptr<const CheckpointReader> reader)
    : parts_(std::make_shared<Parts>(std::move(reader))) {}

std::string Checkpoint::where() const { return parts_->reader->where(); }

std::filesystem::path Checkpoint::companion(std::string_view name) const { return parts_->reader->companion(name); }

std::string Checkpoint::fingerprint() const {
  return parts_->fingerprint.get([&] { return parts_->reader->fingerprint(); });
}

JsonObject Checkpoint::config() const {
  const NamedJson& part = parts_->config.get([&] { return parts_->reader->config(); });
  return {part.json, part.where};
}

const Json* Checkpoint::generation_config() const {
  const std::optional<Json>& part = parts_->generation_config.get([&] { return parts_->reader->generation_config(); });
  return part ? &*part : nullptr;
}

JsonObject Checkpoint::image_settings() const {
  const NamedJson& part = parts_->image_settings.get([&] { return parts_->reader->image_settings(); });
  return {part.json, part.where};
}

JsonObject Checkpoint::video_settings() const {
  const NamedJson& part = parts_->video_settings.get([&] { return parts_->reader->video_settings(); });
  return {part.json, part.where};
}

std::shared_ptr<const Safetensors> Checkpoint::tensors() const {
  const std::lock_guard lock(parts_->tensors_mutex);
  std::shared_ptr<const Safetensors> tensors = parts_->tensors.lock();
  if (tensors == nullptr) {
    tensors = std::make_shared<const Safetensors>(parts_->reader->tensors());
    parts_->tensors = tensors;
  }
  return tensors;
}

TokenizerText Checkpoint::tokenizer() const { return parts_->reader->tokenizer(); }

TokenizerConfig Checkpoint::tokenizer_config() const { return parts_->reader->tokenizer_config(); }

std::map<std::string, std::string> Checkpoint::chat_templates() const { return parts_->reader->chat_templates(); }

}  // namespace vlcache
