#include "engine/reuse/prefix_reuse.h"

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/engine_caches.h"
#include "reuse/choose/reuse_rules.h"
#include "reuse/prefix/prefix_saver.h"
#include "reuse/prefix/prefix_store.h"

namespace vlcache {
namespace {

constexpr double kUnknownMsPerToken = 1;  // for what was stored before records had the time that computing took

// Tokens whose images' KV is identified by `contents`, and the salt of the prompts that may hit it.
struct KeyParts {
  std::span<const TokenInfo> tokens;
  const PromptImages& images;
  std::span<const Sha256Digest> contents;
  std::optional<Sha256Digest> salt;
};

KeyParts parts_of(const Sequence& sequence, int64_t n) {
  const SequenceImages& images = sequence.images();
  return {sequence.tokens().first(static_cast<size_t>(n)), images.list(), images.contents(), images.salt()};
}

std::vector<Element> key_of(PrefixCache& cache, const KeyParts& parts) {
  std::vector<Element> key;
  for (const TokenInfo& token : parts.tokens) key.push_back(token.id);
  for (size_t i = 0; i < parts.images.size(); ++i) {
    const Sha256Digest content = placed_content(parts.images[i], parts.contents[i]);
    parts.images[i].for_each_token([&](int32_t token, int32_t row) {
      const auto t = static_cast<size_t>(token);
      if (t < key.size()) key[t] = cache.image_row(content, row);
    });
  }
  if (parts.salt && !key.empty()) {  // a first element that no other salt has: nothing after it is shared either
    Sha256 hash;
    hash.add(std::as_bytes(std::span(*parts.salt)));
    hash.add(key[0]);
    key[0] = cache.image_row(hash.finish(), 0);
  }
  return key;
}

// The digests by which the store identifies the tokens.
std::vector<Sha256Digest> digests_of(const KeyParts& parts) {
  std::vector<Sha256Digest> digests(parts.tokens.size());
  for (size_t i = 0; i < digests.size(); ++i) std::memcpy(digests[i].data(), &parts.tokens[i].id, sizeof(int32_t));
  for (size_t i = 0; i < parts.images.size(); ++i) {
    const Sha256Digest content = placed_content(parts.images[i], parts.contents[i]);
    parts.images[i].for_each_token([&](int32_t token, int32_t row) {
      if (static_cast<size_t>(token) >= digests.size()) return;
      Sha256 hash;
      hash.add(std::as_bytes(std::span(content)));
      hash.add(int64_t{row});
      digests[static_cast<size_t>(token)] = hash.finish();
    });
  }
  return digests;
}

std::vector<PrefixStore::Image> images_of(const PromptImages& list) {
  std::vector<PrefixStore::Image> images;
  for (const PromptImage& image : list) images.push_back({image.begin(), image.end(), image.key});
  return images;
}

std::vector<PrefixStore::Piece> pieces_of(PrefixStore& store, const KeyParts& parts) {
  return store.pieces(digests_of(parts), images_of(parts.images), parts.salt);
}

std::vector<Sha256Digest> keys_of(const PromptImages& images) {
  std::vector<Sha256Digest> keys;
  for (const PromptImage& image : images) keys.push_back(image.key);
  return keys;
}

// Tokens of a session, in the form of a sequence's.
struct StoredTokens {
  explicit StoredTokens(const PrefixTokens& tokens)
      : infos(tokens.ids.size()),
        images(list_images(tokens.spans, tokens.contents, tokens.positions)),
        contents(tokens.contents),
        salt(tokens.salt) {
    for (size_t i = 0; i < infos.size(); ++i) infos[i].id = tokens.ids[i];
  }
  KeyParts first(int32_t n) const { return {std::span(infos).first(static_cast<size_t>(n)), images, contents, salt}; }
  std::vector<TokenInfo> infos;
  PromptImages images;
  std::span<const Sha256Digest> contents;
  std::optional<Sha256Digest> salt;
};

// Tokens at a prompt's end that must be computed for it: the last one for its logits, and those whose attention or
// queries the policy requests.
int32_t n_to_compute(const Policy& policy, const Prompt& prompt) {
  int32_t n = 1;
  for (const CaptureRequest& request : policy.needs(prompt.shape())) {
    if (request.replay.piece == 0) n = std::max(n, request.window);
    if (request.future > 0) n = prompt.n_tokens();
  }
  return std::min(n, prompt.n_tokens());
}

// Whether pages of this policy's sequences equal those of other policies' sequences.
bool shares_pages(const Policy& policy) { return policy.computes_as_full() && policy.capacity() == 0; }

std::vector<Sha256Digest> contents_of(const std::vector<PrefixMatch::Image>& images) {
  std::vector<Sha256Digest> contents;
  for (const PrefixMatch::Image& image : images) contents.push_back(image.content);
  return contents;
}

bool is_exact(const Sequence& sequence) {
  const SequenceImages& images = sequence.images();
  return sequence.exact() && std::ranges::equal(images.contents(), images.keys());
}

// Matches the first n_most elements of the key: up to where the sequence can continue, and not inside a reused image.
void match_key(PrefixCache& cache, int32_t n_most, PrefixMatch& match) {
  const auto known = [&](int32_t n) {
    return cache.known(std::span(match.key).first(std::min(match.key.size(), static_cast<size_t>(n))));
  };
  const PrefixCache::Known found = known(n_most);
  match.n = found.n;
  match.n_common = match.cut(found.n_common);
  for (int32_t n = match.cut(match.n); n < match.n; n = match.cut(match.n)) match.n = known(n).n;
}

// Says if memory has more of the prompt than n tokens as computed under another codec; "": it does not.
std::string other_codec_reason(Engine& engine, const KnownPrompt& known, const PrefixMatch& match, int32_t n) {
  std::string reason;
  const std::vector<Sha256Digest> keys = keys_of(known.images);
  for (const auto& kv : engine.caches().all()) {
    if (kv->codec() == known.codec) continue;
    const KeyParts parts{known.tokens.first(match.key.size()), known.images, keys, known.salt};
    const int32_t n_more = kv->prefixes().known(key_of(kv->prefixes(), parts)).n_common - n;
    if (n_more <= 0) continue;
    n += n_more;
    reason = std::to_string(n_more) + " more tokens are in the cache, but computed with KV codec " +
             std::string(kv_codec_name(kv->codec()));
  }
  return reason;
}

}  // namespace

std::string prefix_obstacle(const Policy& policy, const Prompt& prompt, const ReuseOptions& options) {
  if (!options.prefix) return "reuse is off";
  if (std::string why = reuse_obstacle(policy, prompt); !why.empty()) return why;
  if (policy.capacity() != 0) return "KV policy " + policy.name() + " has its pages taken before";
  if (prompt.selection) return "the policy has chosen among its image tokens";
  if (n_to_compute(policy, prompt) == prompt.n_tokens() && prompt.n_tokens() > 1) {
    return "KV policy " + policy.name() + " needs every prompt token computed";
  }
  return "";
}

ExactPrefix exact_prefix(Engine& engine, const KnownPrompt& prompt) {
  const std::vector<Sha256Digest> keys = keys_of(prompt.images);
  const KeyParts parts{prompt.tokens, prompt.images, keys, prompt.salt};
  KvCaches& kv = engine.caches().of(prompt.codec);
  return {key_of(kv.prefixes(), parts), pieces_of(*kv.prefix_store(), parts)};
}

PrefixBeginning::PrefixBeginning(const KnownPrompt& prompt, const KvShape& shape)
    : images_(images_of(prompt.images)), salt_(prompt.salt) {
  const size_t most = shape.all_windowed() ? prompt.tokens.size() : size_t{PrefixStore::kRecordPages} * kPageSlots;
  const std::vector<Sha256Digest> keys = keys_of(prompt.images);
  elements_ = digests_of({prompt.tokens.first(std::min(prompt.tokens.size(), most)), prompt.images, keys, salt_});
}

std::string PrefixBeginning::other_codes(PrefixStore& store, std::span<const KvShape> shapes) const {
  return store.other_codes(elements_, images_, salt_, shapes);
}

int32_t PrefixMatch::cut(int32_t n) const {
  for (const Image& image : images) {
    if (image.reused) n = static_cast<int32_t>(cut_before({image.begin, image.end}, n));
  }
  return n;
}

PrefixMatch match_prefix(Engine& engine, const Policy& policy, const Prompt& prompt, const KnownPrompt& known,
                         const ReuseOptions& options, FunctionRef<bool(size_t image)> is_known) {
  PrefixMatch match{.obstacle = prefix_obstacle(policy, prompt, options), .key = {}, .images = {}};
  if (!match.obstacle.empty()) return match;
  PrefixCache& cache = engine.caches().of(known.codec).prefixes();
  const std::span<const TokenInfo> asked =
      known.tokens.first(static_cast<size_t>(prompt.n_tokens() - n_to_compute(policy, prompt)));
  std::vector<PrefixMatch::Image>& images = match.images;
  for (const PromptImage& image : known.images) {
    images.push_back({.begin = image.begin(), .end = image.end(), .n_tokens = image.n_tokens, .content = image.key});
  }
  match.key = key_of(cache, {asked, known.images, contents_of(images), known.salt});
  match_key(cache, options.prefix_most, match);
  // Known images after the exact prefix: if they would be reused here, another prompt may have reused them, too.
  const bool reuses = options.chooser != nullptr && !(options.one_image_only && images.size() > 1);
  const bool neutral = options.origin == ReuseOrigin::kNeutral;  // even if cached: the result would depend on that
  for (size_t i = 0; i < images.size() && reuses; ++i) {
    PrefixMatch::Image& image = images[i];
    const ReusedBefore* const before = reused_before(options, i);
    if (options.resumed && before == nullptr) continue;  // computed, and what follows it, too
    if (!neutral && !(may_be_reused_in_prefix({image.begin, image.end}, match.n) && is_known(i))) continue;
    image.reused = true;
    image.content = reused_content(engine, known, i, *options.chooser, image.n_tokens,
                                   before != nullptr ? before->similar : std::nullopt);
  }
  if (std::ranges::find(images, true, &PrefixMatch::Image::reused) == images.end()) return match;
  match.key = key_of(cache, {asked, known.images, contents_of(images), known.salt});
  match_key(cache, INT32_MAX, match);
  return match;
}

std::string PrefixReuse::begin(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options,
                               ImageSearch& tiers) {
  const KnownPrompt known = prompt_of(sequence);
  KvCaches& kv = engine.caches().of(known.codec);
  const auto is_known = [&](size_t image) {
    return kv.image_kv().contains(known.images[image].key) || tiers.kv(image) != nullptr;
  };
  const PrefixMatch match = match_prefix(engine, sequence.policy(), prompt, known, options, is_known);
  if (!match.obstacle.empty()) return match.obstacle;
  n_allowed_ = static_cast<int32_t>(match.key.size());
  if (match.n > sequence.n_done()) {
    int32_t n_exact = INT32_MAX;
    for (const PrefixMatch::Image& image : match.images) {
      if (image.reused && image.end <= match.n) n_exact = std::min(n_exact, image.begin);
    }
    sequence.release();
    pin_ = kv.prefixes().share(std::span(match.key).first(static_cast<size_t>(match.n)), sequence.cache());
    sequence.assume_computed(match.n, n_exact);
    for (size_t i = 0; i < match.images.size(); ++i) {
      const PrefixMatch::Image& image = match.images[i];
      if (image.reused && image.end <= match.n) sequence.set_image_content(i, image.content);
    }
  }
  if (sequence.n_done() >= std::ssize(match.key)) return "";
  const int32_t n_more = match.n_common - sequence.n_done();
  if (n_more <= 0) {
    const std::string other = other_codec_reason(engine, known, match, sequence.n_done());
    return other.empty() ? "no cached prompt continues like this" : other;
  }
  sequence.cache().keep_place(match.n_common);
  return std::to_string(n_more) + " more tokens are in the cache, but " +
         (kv.shape().has_codes() ? "coded KV" : "a model with sliding windows") +
         " can be continued only at certain places";
}

bool PrefixReuse::give_up() {
  const bool had = pin_.holds();
  pin_ = {};
  return had;
}

std::vector<Element> PrefixReuse::promise(Engine& engine, const Sequence& sequence, const Prompt& prompt,
                                          const ReuseOptions& options) {
  const Policy& policy = sequence.policy();
  const bool acts_after_prompt = prompt.evict_every == 0 && (prompt.query_aware || prompt.spans.empty());
  const bool stays = !policy.evicts() || (options.keep_exact && acts_after_prompt);
  if (!options.prefix || !stays || !shares_pages(policy) || !sequence.complete()) return {};
  PrefixCache& cache = engine.caches().of(sequence.codec()).prefixes();
  const int64_t n_pages = cache.n_fitting(sequence.cache(), prompt.n_tokens());
  return key_of(cache, parts_of(sequence, n_pages * kPageSlots));
}

int32_t PrefixReuse::keep(Engine& engine, const Sequence& sequence, double ms_per_token, bool whole_pages) {
  const Policy& policy = sequence.policy();
  if (!shares_pages(policy) || !sequence.complete()) return 0;
  int32_t n = sequence.n_done();
  if (whole_pages) n = n / kPageSlots * kPageSlots;
  if (n == 0) return 0;
  PrefixCache& cache = engine.caches().of(sequence.codec()).prefixes();
  const std::vector<Element> key = key_of(cache, parts_of(sequence, n));
  cache.keep(key, sequence.cache(), ms_per_token);
  return cache.n_known(key) == n ? n : 0;
}

void PrefixReuse::note_use(Engine& engine, const Sequence& sequence, ExactPrefix prefix, double ms_per_token,
                           bool stays) {
  KvCaches& kv = engine.caches().of(sequence.codec());
  PrefixSaver* const saver = kv.prefix_saver();
  if (saver == nullptr || saver->when() == PrefixSaving::kOff) return;
  if (!shares_pages(sequence.policy()) || !is_exact(sequence) || sequence.in_prompt()) return;
  if (sequence.prompt_shape().n_tokens < kFewestStored) return;
  if (std::ssize(prefix.key) != sequence.prompt_shape().n_tokens) prefix = exact_prefix(engine, prompt_of(sequence));
  const auto computed = [&] { return prefix_kv(*kv.prefix_store(), sequence.cache().fork()); };
  saver->used(std::move(prefix.key), std::move(prefix.pieces), computed,
              {.ms_per_token = ms_per_token,
               .stays = stays && engine.caches().cache_budget().max_bytes() > 0,
               .salted = sequence.images().salt().has_value()});
}

PrefixTokens PrefixReuse::tokens_of(const Sequence& sequence) {
  if (!shares_pages(sequence.policy()) || !sequence.complete()) return {};
  PrefixTokens tokens;
  for (const TokenInfo& token : sequence.tokens().first(static_cast<size_t>(sequence.n_done()))) {
    tokens.ids.push_back(token.id);
    tokens.positions.push_back(token.meta.position);
  }
  const SequenceImages& images = sequence.images();
  tokens.spans.assign(images.spans().begin(), images.spans().end());
  tokens.contents.assign(images.contents().begin(), images.contents().end());
  tokens.keys = images.keys();
  tokens.salt = images.salt();
  return tokens;
}

CachedPrefix PrefixReuse::cached(Engine& engine, const PrefixTokens& tokens, std::optional<KvCodec> codec) {
  KvCaches& kv = engine.caches().of(codec.value_or(engine.kv_codec()));
  PrefixCache& cache = kv.prefixes();
  CachedPrefix found{.kv = KvCache(engine.pools(), engine.backend(), kv.shape()), .pin = {}};
  const std::vector<Element> key = key_of(cache, StoredTokens(tokens).first(std::ssize(tokens.ids)));
  found.n = cache.n_known(key);
  if (found.n > 0) found.pin = cache.share(std::span(key).first(static_cast<size_t>(found.n)), found.kv);
  return found;
}

void PrefixReuse::keep(Engine& engine, const Prompt& prompt, int32_t n, const KvCache& kv, double ms_per_token) {
  const std::vector<TokenInfo> tokens = prompt.token_infos();
  const std::vector<Sha256Digest> keys = image_keys(prompt);
  const PromptImages images = list_images(prompt.spans, keys, prompt.positions);
  PrefixCache& cache = engine.caches().of(kv.shape().full_codec()).prefixes();
  cache.keep(key_of(cache, {std::span(tokens).first(static_cast<size_t>(n)), images, keys, prompt.salt}), kv,
             ms_per_token);
}

PrefixTokens PrefixReuse::store(Engine& engine, Sequence& sequence, const PrefixTokens& before) {
  PrefixTokens tokens = tokens_of(sequence);
  if (tokens.ids.empty()) return {};
  PrefixStore& store = *engine.caches().of(sequence.codec()).prefix_store();
  const std::vector<PrefixStore::Piece> pieces = pieces_of(store, parts_of(sequence, sequence.n_done()));
  sequence.cache().clear_tails();
  for (const PrefixStore::Piece& piece : pieces) {
    if (store.is_near(piece) || !store.holds(piece, sequence.cache())) continue;
    store.save(piece, sequence.cache(), {.ms_per_token = engine.caches().ms_per_token()});
  }
  if (before.ids.empty()) return tokens;
  // The end of the conversation as it was saved before is not needed any more.
  for (const PrefixStore::Piece& old : pieces_of(store, StoredTokens(before).first(std::ssize(before.ids)))) {
    if (std::ranges::find(pieces, old.key, &PrefixStore::Piece::key) == pieces.end()) store.erase(old);
  }
  return tokens;
}

int32_t PrefixReuse::restore(Engine& engine, const PrefixTokens& tokens, std::optional<KvCodec> codec) {
  KvCaches& kv = engine.caches().of(codec.value_or(engine.kv_codec()));
  PrefixStore& store = *kv.prefix_store();
  const StoredTokens stored(tokens);
  const KeyParts all = stored.first(static_cast<int32_t>(tokens.ids.size()));
  KvCache cache(engine.pools(), engine.backend(), kv.shape());
  PrefixStore::Loaded loaded = store.load_all(pieces_of(store, all), cache, kNoDeadline);
  if (loaded.n == 0) loaded.n = store.load_old(digests_of(all), cache, kNoDeadline);
  const double ms_per_token = loaded.ms_per_token > 0 ? loaded.ms_per_token : kUnknownMsPerToken;
  kv.prefixes().keep(key_of(kv.prefixes(), stored.first(loaded.n)), cache, ms_per_token);
  return loaded.n;
}

}  // namespace vlcache
