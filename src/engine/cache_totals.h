// CacheTotals counts what an engine's caches have done for all its requests, and what they hold.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/request.h"
#include "reuse/prefix/prefix_saver.h"
#include "store/tier_chain.h"

namespace vlcache {

struct CacheTotals {
  struct Cache {
    int64_t n_hits = 0, n_misses = 0, n_evictions = 0;
    int64_t n_tokens = 0;                   // that were found, and not computed
    int64_t n_asked_tokens = 0;             // of which these are a part
    int64_t bytes = 0;                      // held now
    std::map<std::string, int64_t> misses;  // by reason

    void miss(const std::string& reason);
  };
  Cache prefix;    // of prompts; a hit finds a page of 64 tokens or more, fewer are what a chat template begins with
  Cache image_kv;  // of images that no cached prefix contained
  Cache encoder;   // of images whose embeddings were needed
  int64_t n_images_in_prefixes = 0, n_image_tokens_in_prefixes = 0;  // that a cached prefix contained
  double saved_ms = 0;  // that computing the found prefixes would have cost
  int64_t max_bytes = 0;
  std::vector<TierChain::State> tiers;
  PrefixSaver::FirstUseStats first_use;

  // n_prompt: tokens of the request's prompt.
  void add(const CacheReport& report, int32_t n_prompt);
};

}  // namespace vlcache
