#include "engine/image_catalog.h"

#include <algorithm>

#include "reuse/image/image_store.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_store.h"

namespace vlcache {

std::vector<ImageEntry> ImageCatalog::list() const {
  std::map<Sha256Digest, ImageEntry> found;
  const auto add = [&](const DigestCache& cache, int64_t ImageEntry::*bytes) {
    cache.for_each([&](const Sha256Digest& key, int64_t n_bytes, int64_t n_uses) {
      ImageEntry& entry = found[key];
      entry.*bytes = n_bytes;
      entry.n_uses = std::max(entry.n_uses, n_uses);
    });
  };
  add(kv_, &ImageEntry::kv_bytes);
  add(rows_, &ImageEntry::rows_bytes);
  std::vector<ImageEntry> entries;
  for (auto& [key, entry] : found) {
    entry.key = key;
    entry.pinned = pins_.contains(key);
    entries.push_back(entry);
  }
  return entries;
}

void ImageCatalog::pin(const Sha256Digest& key) {
  if (!pins_.contains(key)) pins_.emplace(key, Pin{kv_.hold(key), rows_.hold(key)});
}

int64_t ImageCatalog::drop(const Sha256Digest& key) {
  unpin(key);
  const auto held = [&] { return kv_.bytes() + rows_.bytes() + prefixes_.bytes(); };
  const int64_t before = held();
  kv_.drop(key);
  rows_.drop(key);
  prefixes_.clear();
  if (store_ != nullptr) store_->erase(key);
  if (prefix_store_ != nullptr) prefix_store_->erase_image(key);
  return before - held();
}

}  // namespace vlcache
