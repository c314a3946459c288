#include "engine/image_catalog.h"

#include <algorithm>

#include "engine/engine_caches.h"

namespace vlcache {

ImageCatalog::ImageCatalog(EngineCaches& caches) : caches_(caches) {
  caches_.on_new([this](KvCaches& made) {
    for (auto& [key, pin] : pins_) pin.kv.push_back(made.image_kv().hold(key));
  });
}

bool ImageCatalog::has(const Sha256Digest& key) const {
  const auto in = [&](const auto& kv) { return kv->image_kv().contains(key); };
  return caches_.encoder_outputs().contains(key) || std::ranges::any_of(caches_.all(), in);
}

std::vector<ImageEntry> ImageCatalog::list() const {
  std::map<Sha256Digest, ImageEntry> found;
  const auto add = [&](const DigestCache& cache, int64_t ImageEntry::*bytes) {
    cache.for_each([&](const Sha256Digest& key, int64_t n_bytes, int64_t n_uses) {
      ImageEntry& entry = found[key];
      entry.*bytes += n_bytes;
      entry.n_uses = std::max(entry.n_uses, n_uses);
    });
  };
  for (const auto& kv : caches_.all()) add(kv->image_kv(), &ImageEntry::kv_bytes);
  add(caches_.encoder_outputs(), &ImageEntry::rows_bytes);
  std::vector<ImageEntry> entries;
  for (auto& [key, entry] : found) {
    entry.key = key;
    entry.pinned = pins_.contains(key);
    entries.push_back(entry);
  }
  return entries;
}

void ImageCatalog::pin(const Sha256Digest& key) {
  const auto [at, is_new] = pins_.try_emplace(key);
  if (!is_new) return;
  at->second.rows = caches_.encoder_outputs().hold(key);
  for (const auto& kv : caches_.all()) at->second.kv.push_back(kv->image_kv().hold(key));
}

int64_t ImageCatalog::drop(const Sha256Digest& key) {
  unpin(key);
  const int64_t before = caches_.cache_budget().used_bytes();
  caches_.encoder_outputs().drop(key);
  for (const auto& kv : caches_.all()) {
    kv->image_kv().drop(key);
    kv->prefixes().clear();
  }
  caches_.erase_stored(key);
  return before - caches_.cache_budget().used_bytes();
}

}  // namespace vlcache
