// What a prompt begins with: found where another prompt, or its answer, has begun the same, and kept for others.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "reuse/image_store.h"
#include "reuse/prefix_cache.h"

namespace vlcache {

class Engine;

// Tokens as their KV is known by them: ids, and what the KV of the images among them is.
struct PrefixTokens {
  std::vector<int32_t> ids;
  std::vector<ImageSpan> spans;
  std::vector<Sha256Digest> contents;  // by image
};

class PrefixReuse {
 public:
  // Gives `sequence`, which has taken `prompt`, the longest beginning that is known, if that is more than it has: as it
  // would be computed, or behind images that are reused as `options` would have them reused here. Never all of a
  // prompt, whose last token's logits are wanted, and never part of an image that is reused: one that memory has, or a
  // tier, as far as is known. Returns why there was no more of it; "": that is all there could be.
  std::string begin(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options,
                    ImageSearch& tiers);
  // Keeps what the sequence has, if nothing of it was evicted: whole pages, so that it may go on, or all of it.
  static void keep(Engine& engine, const Sequence& sequence, double ms_per_token, bool whole_pages);

  // Stores what a sequence has beyond this process, and says what that is: nothing where something of it was evicted.
  // `before`: what was stored of the same conversation last, whose end is not needed any more.
  static PrefixTokens store(Engine& engine, Sequence& sequence, const PrefixTokens& before);
  // Takes what was stored of these tokens into the prefix cache; returns how many of them.
  static int32_t restore(Engine& engine, const PrefixTokens& tokens);

 private:
  PrefixTree::Pin pin_;  // what is in use does not go
};

}  // namespace vlcache
