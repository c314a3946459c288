// EngineCaches: the caches that an engine keeps beyond running requests: embeddings of images, tiers, and the KV of
// each codec, all within one budget. For engine/ alone (tools/check_layers.py, PRIVATE); others use KvServices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "cache/page_pools.h"
#include "engine/cache_totals.h"
#include "engine/kv_caches.h"
#include "model/images/image_tiles.h"
#include "model/model.h"
#include "reuse/cache_budget.h"
#include "reuse/image/image_store.h"

namespace vlcache {

struct EngineOptions;

// Called by the thread that drives the engine.
class EngineCaches {
 public:
  // usual: the codec of requests that name none. All arguments outlive this.
  EngineCaches(const Model& model, PagePools& pools, KvCodec usual, const EngineOptions& options);
  ~EngineCaches();

  const CacheBudget& cache_budget() const { return *budget_; }
  DigestCache& encoder_outputs() { return *encoder_outputs_; }
  // Null: nothing is kept beyond the process.
  TierChain* tiers() { return tiers_.get(); }

  // The caches of KV under a codec, from its first use on. Throws as kv_shape_of().
  KvCaches& of(KvCodec codec);
  // The caches of Engine::kv_codec().
  KvCaches& usual() { return *kv_.front(); }
  // The caches of every codec that was used so far.
  std::span<const std::unique_ptr<KvCaches>> all() const { return kv_; }
  // Called with caches that later codecs get.
  void on_new(std::function<void(KvCaches&)> told) { on_new_ = std::move(told); }
  // Bytes of all codecs' prefixes.
  int64_t prefix_bytes() const;
  // Queues the erasure of an image in all tiers: its embeddings, and its KV and the prefixes of every codec that the
  // model can have, used by this process or not.
  void erase_stored(const Sha256Digest& image);
  // Another codec than this one, under which memory or a tier on this machine has the image's KV; none: there is none.
  std::optional<KvCodec> other_codec_of(const Sha256Digest& image, KvCodec codec);
  // Moves images that were loaded ahead to memory.
  void take_in_prefetched();

  // A request has ended.
  void count(const CacheReport& report, int32_t n_prompt) { counts_.add(report, n_prompt); }
  // Of requests that have ended; sizes are left out.
  CacheTotals& counts() { return counts_; }
  // Totals of all codecs.
  PrefixSaver::FirstUseStats first_use_stats();
  // A prompt computed this many tokens in this time, encoding included.
  void prompt_computed(int32_t n_tokens, double ms);
  // The recent mean cost of a prompt's token; 0: not measured.
  double ms_per_token() const { return recent_tokens_ > 0 ? recent_ms_ / recent_tokens_ : 0; }

  // Whether memory has an image's embeddings; its KV, too, unless `kv` is null.
  bool holds_image(const Sha256Digest& key, const KvCaches* kv) const;
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
  LoadedEmbeddings load_embeddings(const ImageTiles& image, const Sha256Digest& key, ChainedTier& from, Deadline by);
  void keep_embeddings(const Sha256Digest& key, const LoadedEmbeddings& loaded);
  // Counts uses of embeddings and claims images, whatever the codec; null: nothing is kept beyond the process.
  ImageStore* rows_store() { return usual().image_store(); }

 private:
  // Visits names of every codec's records.
  void for_each_store(FunctionRef<void(KvCodec codec, ImageStore& store)> visit);

  const Model& model_;
  PagePools& pools_;
  const EngineOptions& options_;
  std::unique_ptr<CacheBudget> budget_;  // outlives the caches under it
  std::unique_ptr<DigestCache> encoder_outputs_;
  std::unique_ptr<TierChain> tiers_;  // outlives what is stored through it
  HourlyBytes first_uses_;
  std::vector<std::unique_ptr<KvCaches>> kv_;
  std::function<void(KvCaches&)> on_new_;
  CacheTotals counts_;
  double recent_tokens_ = 0, recent_ms_ = 0;  // of prompts
};

}  // namespace vlcache
