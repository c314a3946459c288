// Bookkeeping of one request.
#include "engine/sequence.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

int32_t Prompt::n_vision_tokens() const {
  int32_t n = 0;
  for (const ImageSpan& s : spans) n += s.end - s.begin;
  return n;
}

std::vector<SlotMeta> Prompt::slot_meta() const {
  std::vector<SlotMeta> meta(tokens.size());
  for (size_t i = 0; i < meta.size(); ++i) meta[i].t = static_cast<int32_t>(i);
  for (const ImageSpan& s : spans) {
    for (int32_t i = s.begin; i < s.end; ++i) {
      meta[static_cast<size_t>(i)].modality = Modality::kVision;
      meta[static_cast<size_t>(i)].segment = s.image;
    }
  }
  return meta;
}

Sequence::Sequence(Prompt prompt, KvCache cache, const CacheMode& mode)
    : prompt_(std::move(prompt)), cache_(std::move(cache)), mode_(mode), tokens_(prompt_.tokens) {
  n_slots_.resize(cache_.shape().layers.size() * static_cast<size_t>(cache_.shape().layers[0].n_kv_heads));
}

void Sequence::add_token(int32_t token) { tokens_.push_back(token); }

namespace {

// Tokens both prompts begin with; an image token counts only if the pictures are equal, pixel by pixel and in the
// sizes that decide how tiles become rows.
int32_t common_prefix(std::span<const int32_t> tokens, const Prompt& old_prompt, const Prompt& new_prompt) {
  const auto [a, b] = std::ranges::mismatch(tokens, new_prompt.tokens);
  int32_t n = static_cast<int32_t>(a - tokens.begin());
  for (size_t i = 0; i < old_prompt.spans.size() && old_prompt.spans[i].begin < n; ++i) {
    const ImageSpan& x = old_prompt.spans[i];
    const ImageSpan* y = i < new_prompt.spans.size() ? &new_prompt.spans[i] : nullptr;
    const bool same =
        y != nullptr && x.begin == y->begin && x.end == y->end && x.first_row == y->first_row &&
        old_prompt.images[static_cast<size_t>(x.image)] == new_prompt.images[static_cast<size_t>(y->image)];
    if (!same) n = x.begin;
  }
  return n;
}

}  // namespace

int32_t Sequence::continue_with(Prompt prompt) {
  int32_t kept = std::min(common_prefix(tokens_, prompt_, prompt), n_computed_);
  // One token at least must be computed, for its logits.
  kept = std::min(kept, static_cast<int32_t>(prompt.tokens.size()) - 1);
  if (kept < n_computed_ && !cache_.exact()) kept = 0;
  if (kept < n_computed_ || kept == 0) cache_.truncate(kept);
  n_computed_ = kept;
  prompt_ = std::move(prompt);
  tokens_ = prompt_.tokens;
  images_.clear();
  peak_kv_bytes_ = cache_.bytes();
  return kept;
}

void Sequence::rewind(int32_t n) {
  CHECK(n <= n_tokens());
  cache_.truncate(n);
  tokens_.resize(static_cast<size_t>(n));
  n_computed_ = std::min(n_computed_, n);
}

void Sequence::note_kv_bytes() { peak_kv_bytes_ = std::max(peak_kv_bytes_, cache_.bytes()); }

void Sequence::advance(int32_t count) {
  CHECK(count <= n_pending());
  n_computed_ += count;
  note_kv_bytes();
  if (!in_prompt() && !mode_.recompute) images_.clear();
  if (mode_.recompute && n_pending() == 0) {
    cache_.truncate(0);
    n_computed_ = 0;
  }
  if (mode_.rule == nullptr) return;
  const int32_t n_layers = cache_.shape().n_layers(), n_kv_heads = cache_.shape().layers[0].n_kv_heads;
  for (int32_t l = 0, i = 0; l < n_layers; ++l) {
    for (int32_t h = 0; h < n_kv_heads; ++h) n_slots_[static_cast<size_t>(i++)] = cache_.n_slots(l, h);
  }
  if (mode_.rule->on_step({.n_layers = n_layers, .n_kv_heads = n_kv_heads, .n_slots = n_slots_}, plan_)) {
    cache_.compact(plan_);
  }
}

}  // namespace vlcache
