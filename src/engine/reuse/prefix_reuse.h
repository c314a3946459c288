// PrefixReuse finds the longest cached prefix of a prompt, left by another prompt or its answer, and caches prefixes.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "engine/request.h"
#include "engine/reuse/image_placement.h"
#include "reuse/image/image_store.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_store.h"

namespace vlcache {

class Engine;

// Tokens as they identify their KV: ids, and what the KV of the images among them is.
struct PrefixTokens {
  std::vector<int32_t> ids;
  std::vector<ImageSpan> spans;
  std::vector<Position> positions;     // [ids.size()]
  std::vector<Sha256Digest> contents;  // by image
  std::vector<Sha256Digest> keys;      // image_keys, by image: its contents if it was computed as in a prompt by itself
  std::optional<Sha256Digest> salt;    // Prompt::salt
};

// The KV of the first n of such tokens. What is in the prefix cache is not evicted while this lives.
struct CachedPrefix {
  int32_t n = 0;
  KvCache kv;
  PrefixTree::Pin pin;
};

// The cached prefix of a prompt.
struct PrefixMatch {
  // An image of the prompt: where it is, and whether it would be loaded there unless it is part of the cached prefix.
  struct Image {
    int32_t begin = 0, end = 0, n_tokens = 0;
    bool reused = false;
    Sha256Digest content{};  // identifies its KV
  };
  std::string obstacle;      // why no prefix may be taken; "": `key` may
  std::vector<Element> key;  // of the tokens that need not be computed for this prompt
  int32_t n = 0;             // elements of it that are cached, after which the sequence can continue
  int32_t n_common = 0;      // elements of it that are cached; more only where KvShape::has_places()
  std::vector<Image> images;

  // The most elements, n at most, that do not end inside a reused image.
  int32_t cut(int32_t n) const;
};

// A prompt's beginning whose KV is computed as in a prompt by itself: its name in the prefix cache, and its records.
struct ExactPrefix {
  std::vector<Element> key;
  std::vector<PrefixStore::Piece> pieces;
};
// Of all of `prompt`, of which the tiers are asked if it has kFewestStored tokens. The engine has a prefix store.
inline constexpr int32_t kFewestStored = kPageSlots;
ExactPrefix exact_prefix(Engine& engine, const KnownPrompt& prompt);

// The tokens of a prompt by which tiers are asked for KV that was computed with other codes: the first ones, or all of
// them where every layer has a window, as tiers lack the first pages then.
class PrefixBeginning {
 public:
  PrefixBeginning() = default;
  PrefixBeginning(const KnownPrompt& prompt, const KvShape& shape);
  // PrefixStore::other_codes().
  std::string other_codes(PrefixStore& store, std::span<const KvShape> shapes) const;

 private:
  std::vector<Sha256Digest> elements_;
  std::vector<PrefixStore::Image> images_;
  std::optional<Sha256Digest> salt_;
};

// Why no cached prefix may be taken for this prompt; "": one may.
std::string prefix_obstacle(const Policy& policy, const Prompt& prompt, const ReuseOptions& options);

// Holds nothing in the caches. is_known: whether the KV of an image of the prompt
// is available.
PrefixMatch match_prefix(Engine& engine, const Policy& policy, const Prompt& prompt, const KnownPrompt& known,
                         const ReuseOptions& options, FunctionRef<bool(size_t image)> is_known);

class PrefixReuse {
 public:
  // Gives `sequence`, which has taken `prompt`, the longest cached prefix, if that is more than it has: as it would be
  // computed, or after images that are reused as `options` would reuse them here. Never all of a prompt, whose last
  // token's logits are needed, and never part of an image that is reused: one that memory has, or a tier, as far as is
  // known. Where KvShape::has_places(), the sequence keeps the place where it parts with the cached prefix. Returns why
  // the prefix is no longer; "": it is as long as it can be.
  std::string begin(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options,
                    ImageSearch& tiers);
  // Lets the prefix that begin() found be evicted from the cache; the sequence keeps its pages. False: there is none.
  bool give_up();
  // After begin(): tokens of the prompt that a prefix may have at most; 0: none may be taken.
  int32_t n_allowed() const { return n_allowed_; }
  // Caches what the sequence has, if none of it was evicted: whole pages, so that it may continue, or all of it.
  // Returns the number of tokens if the cache has all of them then, else 0.
  static int32_t keep(Engine& engine, const Sequence& sequence, double ms_per_token, bool whole_pages);
  // The key of what the sequence, which has begun with `prompt`, will have cached when that is computed, in whole
  // pages; empty if that is not certain.
  static std::vector<Element> promise(Engine& engine, const Sequence& sequence, const Prompt& prompt,
                                      const ReuseOptions& options);

  // The sequence has computed its prompt: passes it to the prefix saver, unless something in it was reused or evicted.
  // To be called before the policy acts. `prefix`: of the prompt; no pieces: not known. `stays`: the prefix cache will
  // hold it.
  static void note_use(Engine& engine, const Sequence& sequence, ExactPrefix prefix, double ms_per_token, bool stays);

  // Stores the sequence's KV beyond this process, and returns its tokens: none if some of it was evicted. `before`:
  // what was stored last of the same conversation, whose end is not needed any more.
  static PrefixTokens store(Engine& engine, Sequence& sequence, const PrefixTokens& before);
  // Loads the stored KV of these tokens, under the codec or Engine::kv_codec(), into the prefix cache; returns the
  // number of tokens.
  static int32_t restore(Engine& engine, const PrefixTokens& tokens, std::optional<KvCodec> codec = {});
  // The sequence's tokens; none if some of its KV was evicted or its policy shares no pages.
  static PrefixTokens tokens_of(const Sequence& sequence);
  // The KV of them in the prefix cache, likewise.
  static CachedPrefix cached(Engine& engine, const PrefixTokens& tokens, std::optional<KvCodec> codec = {});
  // Caches KV of the first n tokens of a prompt under the name that they would have if it was computed for it.
  static void keep(Engine& engine, const Prompt& prompt, int32_t n, const KvCache& kv, double ms_per_token);

 private:
  PrefixTree::Pin pin_;  // keeps pages in use from being evicted
  int32_t n_allowed_ = 0;
};

}  // namespace vlcache
