#include "engine/kv_caches.h"

#include "engine/engine.h"

namespace vlcache {

KvCaches::KvCaches(const Shared& shared, KvShape shape) : shape_(std::move(shape)) {
  shared.pools.add(shape_);
  image_kv_ = std::make_unique<DigestCache>(shared.budget);
  prefixes_ = std::make_unique<PrefixCache>(shared.budget, shared.pools, shape_);
  if (shared.tiers == nullptr) return;
  const Model& model = shared.model;
  const EngineOptions& options = shared.options;
  const ImageStore::Options images{.admit = options.cache_admit, .deadline_ms = options.cache_deadline_ms};
  image_store_ = std::make_unique<ImageStore>(*shared.tiers, images, model.fingerprint(), shape_, options.cache_form,
                                              model.compute_dtype(), model.output_width());
  image_prefetch_ =
      std::make_unique<ImagePrefetch>(shared.budget, *image_kv_, *image_store_, shape_, options.cache_form);
  prefix_store_ = std::make_unique<PrefixStore>(*shared.tiers, model.fingerprint(), shape_, shared.pools);
  const auto empty = [&pools = shared.pools, &backend = model.backend(), shape = shape_] {
    return KvCache(pools, backend, shape);
  };
  prefix_saver_ = std::make_unique<PrefixSaver>(make_prefix_places(*prefix_store_, *prefixes_, empty),
                                                options.save_prefixes, shared.first_uses);
}

}  // namespace vlcache
