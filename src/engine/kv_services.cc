#include "engine/kv_services.h"

#include "base/error.h"
#include "engine/engine_caches.h"
#include "reuse/image/image_kv.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_saver.h"

namespace vlcache {

KvServices::KvServices(EngineCaches& caches)
    : caches_(caches),
      image_entries_(std::make_unique<ImageCatalog>(caches.image_kv(), caches.encoder_outputs(), caches.prefixes(),
                                                    caches.image_store(), caches.prefix_store())) {}

KvServices::~KvServices() = default;

CacheTotals KvServices::totals() const {
  CacheTotals totals = caches_.counts();
  totals.max_bytes = caches_.cache_budget().max_bytes();
  const auto held = [](CacheTotals::Cache& cache, const auto& stats) {
    cache.bytes = stats.bytes;
    cache.n_evictions = stats.n_evictions;
  };
  held(totals.prefix, caches_.prefixes().stats());
  held(totals.image_kv, caches_.image_kv().stats());
  held(totals.encoder, caches_.encoder_outputs().stats());
  if (caches_.tiers() != nullptr) totals.tiers = caches_.tiers()->stats();
  if (caches_.prefix_saver() != nullptr) totals.first_use = caches_.prefix_saver()->first_use_stats();
  return totals;
}

void KvServices::forget_counts() { caches_.counts() = {}; }

int64_t KvServices::reset() {
  const int64_t before = caches_.cache_budget().used_bytes();
  image_entries_->unpin_all();
  caches_.prefixes().clear();
  forget_images();
  return before - caches_.cache_budget().used_bytes();
}

void KvServices::forget_images() {
  caches_.image_kv().clear();
  caches_.encoder_outputs().clear();
  caches_.similar_images().clear();
}

void KvServices::save_prefixes(Deadline deadline) {
  if (caches_.prefix_saver() != nullptr) caches_.prefix_saver()->save_all(deadline);
}

void KvServices::queue_prefixes() {
  if (caches_.prefix_saver() != nullptr) caches_.prefix_saver()->save_all();
}

bool KvServices::save_first_use() {
  return caches_.prefix_saver() != nullptr && caches_.prefix_saver()->save_first_use();
}

bool KvServices::has_first_uses() const {
  return caches_.prefix_saver() != nullptr && caches_.prefix_saver()->has_first_uses();
}

TierChain* KvServices::tiers() { return caches_.tiers(); }

std::shared_ptr<const ImageKv> KvServices::find_image_kv(const Sha256Digest& key) {
  return caches_.image_kv().find<ImageKv>(key);
}

void KvServices::put_image_kv(const Sha256Digest& key, const std::shared_ptr<const ImageKv>& kv) {
  caches_.image_kv().put(key, kv, kv->bytes(), /*cost=*/1);
}

void KvServices::forget_image_kv() { caches_.image_kv().clear(); }

void KvServices::store_image_kv(const Sha256Digest& key, const std::shared_ptr<const ImageKv>& kv) {
  CHECK(caches_.image_store() != nullptr);
  caches_.image_store()->used(key, kv, /*computed=*/true);
}

}  // namespace vlcache
