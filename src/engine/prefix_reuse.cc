// Keys: tokens, and what the KV of their images is.
#include "engine/prefix_reuse.h"

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/image_reuse.h"
#include "reuse/prefix_store.h"

namespace vlcache {
namespace {

constexpr double kRestoredMsPerToken = 1;  // what computing it took is not known any more

// Of tokens whose images' KV is known by `contents`.
std::vector<Element> key_of(PrefixCache& cache, std::span<const TokenInfo> tokens, std::span<const ImageSpan> spans,
                            std::span<const Sha256Digest> contents) {
  std::vector<Element> key;
  for (const TokenInfo& token : tokens) key.push_back(token.id);
  for (const ImageSpan& span : spans) {
    for (int32_t t = span.begin; t < std::min(span.end, static_cast<int32_t>(tokens.size())); ++t) {
      key[static_cast<size_t>(t)] = cache.image_row(contents[static_cast<size_t>(span.image)], span.row_of(t));
    }
  }
  return key;
}

// What the store knows the tokens by.
std::vector<Sha256Digest> digests_of(const PrefixTokens& tokens) {
  std::vector<Sha256Digest> digests(tokens.ids.size());
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    std::memcpy(digests[i].data(), &tokens.ids[i], sizeof(int32_t));
  }
  for (const ImageSpan& span : tokens.spans) {
    for (int32_t t = span.begin; t < span.end; ++t) {
      Sha256 hash;
      hash.add(std::as_bytes(std::span(tokens.contents[static_cast<size_t>(span.image)])));
      hash.add(int64_t{span.row_of(t)});
      digests[static_cast<size_t>(t)] = hash.finish();
    }
  }
  return digests;
}

// Where an image stands.
struct Place {
  int32_t begin = INT32_MAX, end = 0, n_tokens = 0;
};

std::vector<Place> list_places(const Prompt& prompt) {
  std::vector<Place> places(prompt.images.size());
  for (const ImageSpan& span : prompt.spans) {
    Place& place = places[static_cast<size_t>(span.image)];
    place.begin = std::min(place.begin, span.begin);
    place.end = std::max(place.end, span.end);
    place.n_tokens += span.end - span.begin;
  }
  return places;
}

// Tokens at a prompt's end that must be computed for it: the last one for its logits, and those whose attention or
// queries the policy asks for.
int32_t n_to_compute(const Policy& policy, const Prompt& prompt) {
  int32_t n = 1;
  for (const CaptureRequest& request : policy.needs(prompt.shape())) {
    if (request.replay.piece == 0) n = std::max(n, request.window);
    if (request.future > 0) n = prompt.n_tokens();
  }
  return std::min(n, prompt.n_tokens());
}

// Whether an image's KV can be had.
bool is_known(Engine& engine, const Sha256Digest& image) {
  return engine.image_kv().contains(image) || (engine.image_store() != nullptr && engine.image_store()->has(image));
}

}  // namespace

std::string PrefixReuse::begin(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options) {
  PrefixCache& cache = engine.prefixes();
  const Policy& policy = sequence.policy();
  if (!options.prefix) return "reuse is off";
  if (std::string why = reuse_obstacle(policy, prompt); !why.empty()) return why;
  if (policy.capacity() != 0) return "KV policy " + policy.name() + " has its pages taken before";
  if (prompt.selection) return "the policy has chosen among its image tokens";
  const int32_t most = prompt.n_tokens() - n_to_compute(policy, prompt);
  if (most == 0 && prompt.n_tokens() > 1) return "KV policy " + policy.name() + " needs every prompt token computed";
  const std::span<const TokenInfo> asked = sequence.tokens().first(static_cast<size_t>(most));
  const std::vector<Place> places = list_places(prompt);
  std::vector<Sha256Digest> contents(sequence.image_keys().begin(), sequence.image_keys().end());
  std::vector<Element> key = key_of(cache, asked, sequence.spans(), contents);
  int32_t n = cache.n_known(key);
  // Images that are known, behind what is known exactly: would they be reused, another prompt may have done the same.
  const bool reuses = options.chooser != nullptr && !(options.one_image_only && places.size() > 1);
  std::vector<bool> reused(places.size(), false);
  for (size_t i = 0; i < places.size() && reuses; ++i) {
    const int32_t n_left = places[i].end - n;  // of one that is known in part, whole pages as a rule
    if (n_left <= (places[i].begin < n ? kPageSlots : 0)) continue;
    if (!is_known(engine, sequence.image_keys()[i])) continue;
    reused[i] = true;
    contents[i] = reused_content(engine, sequence, i, *options.chooser, places[i].n_tokens);
  }
  int32_t n_exact = INT32_MAX;
  if (std::ranges::find(reused, true) != reused.end()) {
    key = key_of(cache, asked, sequence.spans(), contents);
    n = cache.n_known(key);
    for (size_t i = 0; i < places.size(); ++i) {
      if (reused[i] && places[i].begin < n && n < places[i].end) n = places[i].begin;
    }
    for (size_t i = 0; i < places.size(); ++i) {
      if (reused[i] && places[i].end <= n) n_exact = std::min(n_exact, places[i].begin);
    }
  }
  if (n > sequence.n_done()) {
    sequence.release();
    pin_ = cache.share(std::span(key).first(static_cast<size_t>(n)), sequence.cache());
    sequence.assume_computed(n, n_exact);
    for (size_t i = 0; i < places.size(); ++i) {
      if (reused[i] && places[i].end <= n) sequence.set_image_content(i, contents[i]);
    }
  }
  return sequence.n_done() >= most ? "" : "nothing that is known goes on like this";
}

void PrefixReuse::keep(Engine& engine, const Sequence& sequence, double ms_per_token, bool whole_pages) {
  const Policy& policy = sequence.policy();
  if (!policy.computes_as_full() || policy.capacity() != 0 || !sequence.cache().complete()) return;
  int32_t n = sequence.n_done();
  if (whole_pages) n = n / kPageSlots * kPageSlots;
  if (n == 0) return;
  PrefixCache& cache = engine.prefixes();
  cache.keep(
      key_of(cache, sequence.tokens().first(static_cast<size_t>(n)), sequence.spans(), sequence.image_contents()),
      sequence.cache(), ms_per_token);
}

PrefixTokens PrefixReuse::store(Engine& engine, Sequence& sequence) {
  const Policy& policy = sequence.policy();
  if (!policy.computes_as_full() || policy.capacity() != 0 || !sequence.cache().complete()) return {};
  const auto n = static_cast<size_t>(sequence.n_done());
  PrefixTokens tokens;
  for (const TokenInfo& token : sequence.tokens().first(n)) tokens.ids.push_back(token.id);
  tokens.spans.assign(sequence.spans().begin(), sequence.spans().end());
  tokens.contents.assign(sequence.image_contents().begin(), sequence.image_contents().end());
  engine.prefix_store()->save(digests_of(tokens), sequence.cache());
  return tokens;
}

int32_t PrefixReuse::restore(Engine& engine, const PrefixTokens& tokens) {
  KvCache cache(engine.pools(), engine.backend(), engine.kv_shape());
  const int32_t n = engine.prefix_store()->load(digests_of(tokens), cache, kNoDeadline);
  std::vector<TokenInfo> infos(static_cast<size_t>(n));
  for (size_t i = 0; i < infos.size(); ++i) infos[i].id = tokens.ids[i];
  engine.prefixes().keep(key_of(engine.prefixes(), infos, tokens.spans, tokens.contents), cache, kRestoredMsPerToken);
  return n;
}

}  // namespace vlcache
