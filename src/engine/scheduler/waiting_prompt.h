// WaitingPrompt is a queued request as the caches see it: what it would hit if it started now, held for it until then,
// and what other requests are computing that it could use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/reuse/prefix_reuse.h"

namespace vlcache {

class Engine;
class KvCaches;

class WaitingPrompt {
 public:
  // n_done: tokens whose KV the request already has. `images` and `tiers`: the prompt's images and the search for them.
  // `kv`: of the request's codec. All but the options must outlive it.
  WaitingPrompt(Engine& engine, KvCaches& kv, const Prompt& prompt, const PromptImages& images, const Policy& policy,
                const ReuseOptions& options, ImageSearch& tiers, int32_t n_done);

  // Tokens that would not be computed if it started now, in memory alone: the cached prefix, and images after it whose
  // KV is cached.
  int32_t n_matched();
  // Whether the whole prompt is in the KV cache before its policy evicts anything.
  bool needs_whole_prompt() const;
  // Whether it could reuse the image.
  bool wants(const Sha256Digest& image) const;
  // Whether an image that it could reuse is being recorded.
  bool awaits_image() const;
  // Number of leading elements that a prefix which another request has promised to keep has in common with its own.
  int32_t n_common(std::span<const Element> promised);
  // Whether the first n of these would give it at least a page more than is cached now.
  bool awaits(int32_t n);
  // Holds what it would hit, so that it is not evicted, as far as this takes nothing from running requests.
  void hold();
  // Starts to load images into memory that only tiers have.
  void prefetch();

 private:
  void look();

  Engine& engine_;
  KvCaches& kv_;
  const Prompt& prompt_;
  const PromptImages& images_;
  const Policy& policy_;
  ReuseOptions options_;
  ImageSearch& tiers_;
  int32_t n_done_;
  std::vector<ChainedTier*> in_tiers_;  // by image; null: in none that was known at the last look()
  std::vector<bool> prefetched_;
  PrefixMatch match_;
  int64_t prefix_version_ = -1, image_version_ = -1;  // of the caches at the last look()
  bool held_ = false;                                 // as of the last look()
  std::vector<CacheHold> holds_;
};

}  // namespace vlcache
