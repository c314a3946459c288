// A request in line, as far as the caches go: what it would find if it started now, kept for it until then, and what
// others are computing that it could use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/reuse/prefix_reuse.h"

namespace vlcache {

class Engine;

class WaitingPrompt {
 public:
  // n_done: tokens whose KV the request has already. Engine, prompt, policy and tiers must outlive it.
  // `tiers`: asked for the prompt's images already.
  WaitingPrompt(Engine& engine, const Prompt& prompt, const Policy& policy, const ReuseOptions& options,
                ImageSearch& tiers, int32_t n_done);

  // Tokens that would not be computed if it started now, as far as memory goes: what is known of the prompt's
  // beginning, and images behind that whose KV is.
  int32_t n_matched();
  // Whether it could reuse the image.
  bool wants(const Sha256Digest& image) const;
  // Whether somebody is recording one that it could reuse.
  bool awaits_image() const;
  // Whether, of a beginning that somebody has promised to keep, it could use at least a page more than is known now.
  bool awaits(std::span<const Element> promised);
  // Keeps what it would find from being evicted, as far as that does not take it from those who run.
  void hold();
  // Has images that only tiers have brought to memory.
  void prefetch();

 private:
  void look();

  Engine& engine_;
  const Prompt& prompt_;
  const Policy& policy_;
  ReuseOptions options_;
  ImageSearch& tiers_;
  int32_t n_done_;
  std::vector<Sha256Digest> keys_;      // by image, as all of these
  std::vector<ChainedTier*> in_tiers_;  // null: in none, as far as was known when it looked
  std::vector<bool> prefetched_;
  PrefixMatch match_;
  int64_t prefix_version_ = -1, image_version_ = -1;  // of the caches when it looked
  bool held_ = false;                                 // as it looked
  std::vector<CacheHold> holds_;
};

}  // namespace vlcache
