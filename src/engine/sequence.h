// Sequence: one request on its way: its tokens, its KV, and how far it has come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/capture.h"
#include "cache/kv_cache.h"
#include "engine/prompt.h"
#include "model/model.h"
#include "policy/cache_mode.h"

namespace vlcache {

class Sequence {
 public:
  Sequence(Prompt prompt, KvCache cache, const CacheMode& mode);

  const Prompt& prompt() const { return prompt_; }
  const CacheMode& mode() const { return mode_; }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }

  std::span<const int32_t> tokens() const { return tokens_; }  // prompt and generated
  int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t n_computed() const { return n_computed_; }  // tokens whose K and V the cache has seen
  int32_t n_pending() const { return n_tokens() - n_computed_; }
  bool in_prompt() const { return n_computed_ < static_cast<int32_t>(prompt_.tokens.size()); }
  void add_token(int32_t token);

  // Takes a new prompt and keeps the KV of the tokens both begin with (same tokens, same pictures); the rest is
  // pending. Returns how many were kept. A cache that evicted something is kept only when the old sequence is wholly a
  // prefix of the new one.
  int32_t continue_with(Prompt prompt);
  // Forgets every token from index n on.
  void rewind(int32_t n);
  // The caller has filled the cache with K and V of the first n tokens itself.
  void assume_computed(int32_t n) { n_computed_ = n; }

  // The tokens of `count` rows have gone through the model. Applies the mode's rule.
  void advance(int32_t count);
  // Vision embeddings of the prompt's images, set before the first step; dropped when no longer needed.
  void set_images(std::vector<VisionOutput> images) { images_ = std::move(images); }
  const VisionOutput& image(int32_t i) const { return images_[static_cast<size_t>(i)]; }

  int64_t peak_kv_bytes() const { return peak_kv_bytes_; }
  // Notes the cache's size; the stepper calls it while a step's slots are all there.
  void note_kv_bytes();

 private:
  Prompt prompt_;
  KvCache cache_;
  CacheMode mode_;
  std::vector<int32_t> tokens_;
  std::vector<VisionOutput> images_;
  int32_t n_computed_ = 0;
  int64_t peak_kv_bytes_ = 0;
  std::vector<int32_t> n_slots_;  // [n_layers, n_kv_heads] for the rule
  KeepPlan plan_;
};

}  // namespace vlcache
