// KvCaches: the KV that an engine keeps beyond running requests, computed under one codec, in memory and in tiers.
// KV of another codec differs, and is never found here. For engine/ alone (tools/check_layers.py, PRIVATE).
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "cache/page_pools.h"
#include "reuse/cache_budget.h"
#include "reuse/choose/reuse_rules.h"
#include "reuse/image/image_prefetch.h"
#include "reuse/image/image_store.h"
#include "reuse/image/similar_image_index.h"
#include "reuse/prefix/hourly_bytes.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_saver.h"
#include "reuse/prefix/prefix_store.h"

namespace vlcache {

class Model;
struct EngineOptions;

// Called by the thread that drives the engine.
class KvCaches {
 public:
  // Shared by the caches of all codecs, which it outlives.
  struct Shared {
    const Model& model;
    PagePools& pools;
    CacheBudget& budget;
    TierChain* tiers;         // null: nothing is kept beyond the process
    HourlyBytes& first_uses;  // bounds the bytes stored of prompts that were used once
    const EngineOptions& options;
  };
  // Adds the pools of the shape's pages.
  KvCaches(const Shared& shared, KvShape shape);

  const KvShape& shape() const { return shape_; }
  KvCodec codec() const { return shape_.full_codec(); }
  PrefixCache& prefixes() { return *prefixes_; }
  const PrefixCache& prefixes() const { return *prefixes_; }
  // ImageKv by image_key, of KV that was computed exactly, in EngineOptions::cache_form.
  DigestCache& image_kv() { return *image_kv_; }
  const DigestCache& image_kv() const { return *image_kv_; }
  // Null, all four: nothing is kept beyond the process.
  ImageStore* image_store() { return image_store_.get(); }
  ImagePrefetch* image_prefetch() { return image_prefetch_.get(); }
  PrefixStore* prefix_store() { return prefix_store_.get(); }
  PrefixSaver* prefix_saver() { return prefix_saver_.get(); }

  // Images whose KV is being recorded: other requests with the same image wait for it.
  std::set<Sha256Digest>& images_in_work() { return images_in_work_; }
  // An image stood where its KV could not be recorded for others. True: not for the first time.
  bool lacks_origin_again(const Sha256Digest& image) { return images_without_origin_.again(image); }
  // Images whose KV other images may take, as far as requests with ReuseOptions::similar have shown what is in them.
  SimilarImageIndex& similar_images() { return similar_images_; }

 private:
  KvShape shape_;
  std::unique_ptr<DigestCache> image_kv_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::unique_ptr<ImageStore> image_store_;
  std::unique_ptr<ImagePrefetch> image_prefetch_;
  std::unique_ptr<PrefixStore> prefix_store_;
  std::unique_ptr<PrefixSaver> prefix_saver_;
  SimilarImageIndex similar_images_;
  std::set<Sha256Digest> images_in_work_;
  ImagesWithoutOrigin images_without_origin_;
};

}  // namespace vlcache
