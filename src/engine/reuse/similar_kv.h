// SimilarKv finds, for an image of a prompt of which no KV is cached, the KV of a similar image, and what of it must be
// recomputed.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/prompt/prompt_images.h"
#include "engine/request.h"
#include "reuse/image/image_kv.h"

namespace vlcache {

class KvCaches;
struct ModelConfig;

class SimilarKv {
 public:
  // All but the options outlive this object. `kv`: of the prompt's codec.
  SimilarKv(const ModelConfig& config, KvCaches& kv, const Prompt& prompt, const ReuseOptions& options);

  struct Found {
    Sha256Digest image{};  // the other one's key
    std::shared_ptr<const ImageKv> kv;
    std::vector<bool> changed;  // [n_tokens] tokens that differ, and those around them: not all
    int32_t n_changed = 0;
  };
  // Nothing unless the request allows it, its chooser goes by positions alone (a preview would see outdated KV), and
  // the image has not taken KV of another one before. `again`: of that image alone, whose KV it had.
  std::optional<Found> find(const PromptImage& image, size_t number, const std::optional<Sha256Digest>& again) const;
  // KV of the image is in memory: later images may be similar to it.
  void note(const PromptImage& image, size_t number) const;

 private:
  Sha256Digest shape(size_t number) const;

  const ModelConfig& config_;
  KvCaches& kv_;
  const Prompt& prompt_;
  bool allowed_;
};

}  // namespace vlcache
