#include "engine/kv_services.h"

#include <algorithm>

#include "base/error.h"
#include "engine/engine_caches.h"
#include "reuse/image/image_kv.h"

namespace vlcache {

KvServices::KvServices(EngineCaches& caches)
    : caches_(caches), image_entries_(std::make_unique<ImageCatalog>(caches)) {}

KvServices::~KvServices() = default;

CacheTotals KvServices::totals() const {
  CacheTotals totals = caches_.counts();
  totals.max_bytes = caches_.cache_budget().max_bytes();
  const auto held = [](CacheTotals::Cache& cache, const auto& stats) {
    cache.bytes += stats.bytes;
    cache.n_evictions += stats.n_evictions;
  };
  for (const auto& kv : caches_.all()) {
    held(totals.prefix, kv->prefixes().stats());
    held(totals.image_kv, kv->image_kv().stats());
  }
  held(totals.encoder, caches_.encoder_outputs().stats());
  if (caches_.tiers() != nullptr) totals.tiers = caches_.tiers()->stats();
  totals.first_use = caches_.first_use_stats();
  return totals;
}

void KvServices::forget_counts() { caches_.counts() = {}; }

int64_t KvServices::reset() {
  const int64_t before = caches_.cache_budget().used_bytes();
  image_entries_->unpin_all();
  for (const auto& kv : caches_.all()) kv->prefixes().clear();
  forget_images();
  return before - caches_.cache_budget().used_bytes();
}

void KvServices::forget_images() {
  for (const auto& kv : caches_.all()) {
    kv->image_kv().clear();
    kv->similar_images().clear();
  }
  caches_.encoder_outputs().clear();
}

void KvServices::save_prefixes(Deadline deadline) {
  for (const auto& kv : caches_.all()) {
    if (kv->prefix_saver() != nullptr) kv->prefix_saver()->save_all(deadline);
  }
}

void KvServices::queue_prefixes() {
  for (const auto& kv : caches_.all()) {
    if (kv->prefix_saver() != nullptr) kv->prefix_saver()->save_all();
  }
}

bool KvServices::save_first_use() {
  return std::ranges::any_of(caches_.all(), [](const auto& kv) {
    return kv->prefix_saver() != nullptr && kv->prefix_saver()->save_first_use();
  });
}

bool KvServices::has_first_uses() const {
  return std::ranges::any_of(caches_.all(), [](const auto& kv) {
    return kv->prefix_saver() != nullptr && kv->prefix_saver()->has_first_uses();
  });
}

TierChain* KvServices::tiers() { return caches_.tiers(); }

std::shared_ptr<const ImageKv> KvServices::find_image_kv(const Sha256Digest& key) {
  return caches_.usual().image_kv().find<ImageKv>(key);
}

void KvServices::put_image_kv(const Sha256Digest& key, const std::shared_ptr<const ImageKv>& kv) {
  caches_.usual().image_kv().put(key, kv, kv->bytes(), /*cost=*/1);
}

void KvServices::forget_image_kv() { caches_.usual().image_kv().clear(); }

void KvServices::store_image_kv(const Sha256Digest& key, const std::shared_ptr<const ImageKv>& kv) {
  CHECK(caches_.usual().image_store() != nullptr);
  caches_.usual().image_store()->used(key, kv, /*computed=*/true);
}

}  // namespace vlcache
