// EngineCaches: the caches that an engine keeps beyond running requests, of prefixes, images' KV and embeddings, in
// memory and in tiers. For engine/ alone (tools/check_layers.py, PRIVATE); others use KvServices.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "base/clock.h"
#include "cache/page_pools.h"
#include "engine/cache_totals.h"
#include "model/images/image_tiles.h"
#include "model/model.h"
#include "reuse/cache_budget.h"
#include "reuse/choose/reuse_rules.h"
#include "reuse/image/image_prefetch.h"
#include "reuse/image/image_store.h"
#include "reuse/image/similar_image_index.h"

namespace vlcache {

class PrefixCache;
class PrefixSaver;
class PrefixStore;
struct EngineOptions;

// Called by the thread that drives the engine.
class EngineCaches {
 public:
  // All outlive this.
  EngineCaches(const Model& model, PagePools& pools, const KvShape& shape, const EngineOptions& options);
  ~EngineCaches();

  const CacheBudget& cache_budget() const { return *budget_; }
  PrefixCache& prefixes() { return *prefixes_; }
  const PrefixCache& prefixes() const { return *prefixes_; }
  // ImageKv by image_key, of KV that was computed exactly, in EngineOptions::cache_form.
  DigestCache& image_kv() { return *image_kv_; }
  DigestCache& encoder_outputs() { return *encoder_outputs_; }
  // Null, all five: nothing is kept beyond the process.
  TierChain* tiers() { return tiers_.get(); }
  ImageStore* image_store() { return image_store_.get(); }
  ImagePrefetch* image_prefetch() { return image_prefetch_.get(); }
  PrefixStore* prefix_store() { return prefix_store_.get(); }
  PrefixSaver* prefix_saver() { return prefix_saver_.get(); }

  // A request has ended.
  void count(const CacheReport& report, int32_t n_prompt) { counts_.add(report, n_prompt); }
  // Of requests that have ended; sizes are left out.
  CacheTotals& counts() { return counts_; }
  // A prompt computed this many tokens in this time, encoding included.
  void prompt_computed(int32_t n_tokens, double ms);
  // The recent mean cost of a prompt's token; 0: not measured.
  double ms_per_token() const { return recent_tokens_ > 0 ? recent_ms_ / recent_tokens_ : 0; }

  // Images whose KV is being recorded: other requests with the same image wait for it.
  std::set<Sha256Digest>& images_in_work() { return images_in_work_; }
  // An image stood where its KV could not be recorded for others. True: not for the first time.
  bool lacks_origin_again(const Sha256Digest& image) { return images_without_origin_.again(image); }
  // Images whose KV other images may take, as far as requests with ReuseOptions::similar have shown what is in them.
  SimilarImageIndex& similar_images() { return similar_images_; }
  // Whether memory has an image's embeddings and, with_kv, its KV.
  bool holds_image(const Sha256Digest& key, bool with_kv) const;

  // Embeddings in memory of the image whose image_key is `key`; null: none.
  std::shared_ptr<const VisionOutput> find_embeddings(const Sha256Digest& key);
  // Those that the encoder has given, which took `ms`.
  std::shared_ptr<const VisionOutput> keep_encoded(const Sha256Digest& key, VisionOutput embeddings, double ms);
  // Embeddings on their way from a tier: undefined until the load is ready, then to be kept. Until `by`.
  struct LoadedEmbeddings {
    std::shared_ptr<VisionOutput> output;
    std::unique_ptr<ImageLoad> load;
    Clock::time_point begin;
  };
  LoadedEmbeddings load_embeddings(const ImageTiles& image, const Sha256Digest& key, ChainedTier& from,
                                   Deadline by) const;
  void keep_embeddings(const Sha256Digest& key, const LoadedEmbeddings& loaded);

 private:
  const Model& model_;
  std::unique_ptr<CacheBudget> budget_;  // outlives the caches under it
  std::unique_ptr<DigestCache> encoder_outputs_, image_kv_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::unique_ptr<TierChain> tiers_;  // outlives what is stored through it
  std::unique_ptr<ImageStore> image_store_;
  std::unique_ptr<ImagePrefetch> image_prefetch_;
  std::unique_ptr<PrefixStore> prefix_store_;
  std::unique_ptr<PrefixSaver> prefix_saver_;
  SimilarImageIndex similar_images_;
  CacheTotals counts_;
  double recent_tokens_ = 0, recent_ms_ = 0;  // of prompts
  std::set<Sha256Digest> images_in_work_;
  ImagesWithoutOrigin images_without_origin_;
};

}  // namespace vlcache
