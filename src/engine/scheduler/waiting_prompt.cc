#include "engine/scheduler/waiting_prompt.h"

#include <algorithm>

#include "engine/engine.h"
#include "engine/engine_caches.h"

namespace vlcache {

WaitingPrompt::WaitingPrompt(Engine& engine, KvCaches& kv, const Prompt& prompt, const PromptImages& images,
                             const Policy& policy, const ReuseOptions& options, ImageSearch& tiers, int32_t n_done)
    : engine_(engine),
      kv_(kv),
      prompt_(prompt),
      images_(images),
      policy_(policy),
      options_(options),
      tiers_(tiers),
      n_done_(n_done),
      in_tiers_(images.size(), nullptr),
      prefetched_(images.size(), false) {}

bool WaitingPrompt::needs_whole_prompt() const {
  return policy_.computes_as_full() && policy_.capacity() == 0 && prompt_.evict_every == 0;
}

// Looks the caches up again only if they have changed.
void WaitingPrompt::look() {
  const int64_t prefix_version = kv_.prefixes().version(), image_version = kv_.image_kv().version();
  std::vector<ChainedTier*> in_tiers;
  for (size_t i = 0; i < images_.size(); ++i) in_tiers.push_back(tiers_.kv(i));
  if (prefix_version == prefix_version_ && image_version == image_version_ && in_tiers == in_tiers_) return;
  prefix_version_ = prefix_version;
  image_version_ = image_version;
  in_tiers_ = std::move(in_tiers);
  held_ = false;
  const std::vector<TokenInfo> tokens = prompt_.token_infos();
  match_ = match_prefix(
      engine_, policy_, prompt_, {tokens, images_, prompt_.salt, kv_.codec()}, options_,
      [this](size_t image) { return kv_.image_kv().contains(images_[image].key) || in_tiers_[image] != nullptr; });
}

int32_t WaitingPrompt::n_matched() {
  look();
  const int32_t n_prefix = std::max(n_done_, match_.n);
  int32_t n = n_prefix;
  for (size_t i = 0; i < match_.images.size(); ++i) {
    const PrefixMatch::Image& image = match_.images[i];
    if (image.reused && image.begin >= n_prefix && kv_.image_kv().contains(images_[i].key)) n += image.n_tokens;
  }
  return n;
}

bool WaitingPrompt::wants(const Sha256Digest& image) const {
  return options_.chooser != nullptr && std::ranges::find(images_, image, &PromptImage::key) != images_.end();
}

bool WaitingPrompt::awaits_image() const {
  return std::ranges::any_of(kv_.images_in_work(), [this](const Sha256Digest& image) { return wants(image); });
}

int32_t WaitingPrompt::n_common(std::span<const Element> promised) {
  look();
  return static_cast<int32_t>(std::ranges::mismatch(match_.key, promised).in1 - match_.key.begin());
}

bool WaitingPrompt::awaits(int32_t n) {
  look();
  return match_.cut(n) - std::max(n_done_, match_.n) >= kPageSlots;
}

void WaitingPrompt::hold() {
  look();
  if (std::exchange(held_, true)) return;
  std::vector<CacheHold> holds;
  if (match_.n > 0) holds.push_back(kv_.prefixes().hold(std::span(match_.key).first(static_cast<size_t>(match_.n))));
  for (size_t i = 0; i < images_.size(); ++i) {
    if (i < match_.images.size() && match_.images[i].end <= match_.n) continue;
    if (options_.encoder) holds.push_back(engine_.caches().encoder_outputs().hold(images_[i].key));
    if (options_.chooser != nullptr) holds.push_back(kv_.image_kv().hold(images_[i].key));
  }
  holds_ = std::move(holds);
}

void WaitingPrompt::prefetch() {
  if (kv_.image_prefetch() == nullptr) return;
  look();
  for (size_t i = 0; i < match_.images.size(); ++i) {
    const PrefixMatch::Image& image = match_.images[i];
    const bool wanted = image.reused && image.end > match_.n && !prefetched_[i];
    if (!wanted || in_tiers_[i] == nullptr || kv_.image_kv().contains(images_[i].key)) continue;
    prefetched_[i] = kv_.image_prefetch()->start(images_[i].key, image.n_tokens, *in_tiers_[i]);
  }
}

}  // namespace vlcache
