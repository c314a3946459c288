// What a prompt begins with: found where another prompt, or its answer, has begun the same, and kept for others.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "engine/request.h"
#include "engine/reuse/image_reuse.h"
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

// What of a prompt is known.
struct PrefixMatch {
  // Of the prompt: where it stands, and whether it would be loaded there, if it is not known with what is before it.
  struct Image {
    int32_t begin = INT32_MAX, end = 0, n_tokens = 0;
    bool reused = false;
    Sha256Digest content{};  // what its KV is known by
  };
  std::string obstacle;      // why nothing may be taken; "": `key` may
  std::vector<Element> key;  // of the tokens that need not be computed for this prompt
  int32_t n = 0;             // elements of it that are known
  std::vector<Image> images;

  // Of the first n elements, so many that they end in no image that is reused.
  int32_t cut(int32_t n) const;
};

// Asks nobody to keep anything. image_keys of `known`, not contents; is_known: whether the KV of an image of the prompt
// can be had.
PrefixMatch match_prefix(Engine& engine, const Policy& policy, const Prompt& prompt, const KnownPrompt& known,
                         const ReuseOptions& options, FunctionRef<bool(size_t image)> is_known);

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
  // What the sequence, which has begun with `prompt`, will have kept once that is computed, whole pages; empty where
  // that is not sure.
  static std::vector<Element> promise(Engine& engine, const Sequence& sequence, const Prompt& prompt,
                                      const ReuseOptions& options);

  // Stores what a sequence has beyond this process, and says what that is: nothing where something of it was evicted.
  // `before`: what was stored of the same conversation last, whose end is not needed any more.
  static PrefixTokens store(Engine& engine, Sequence& sequence, const PrefixTokens& before);
  // Takes what was stored of these tokens into the prefix cache; returns how many of them.
  static int32_t restore(Engine& engine, const PrefixTokens& tokens);

 private:
  PrefixTree::Pin pin_;  // what is in use does not go
};

}  // namespace vlcache
