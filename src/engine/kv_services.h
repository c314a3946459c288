// KvServices: what callers may do with the KV and embeddings that an engine keeps beyond running requests: totals, list
// and pins of images, reset, storing. The caches themselves are EngineCaches, for engine/ alone.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "engine/cache_totals.h"
#include "engine/image_catalog.h"
#include "store/tier_chain.h"

namespace vlcache {

class EngineCaches;
class ImageKv;

// Called by the thread that drives the engine.
class KvServices {
 public:
  // The other outlives this.
  explicit KvServices(EngineCaches& caches);
  ~KvServices();

  // Counts since loading, and what the caches hold now.
  CacheTotals totals() const;
  void forget_counts();
  // The images in memory: list, pin, drop.
  ImageCatalog& images() { return *image_entries_; }
  // Unpins all images and forgets all that memory keeps beyond running requests; tiers keep theirs. Returns the bytes
  // freed.
  int64_t reset();
  // The same for images alone: embeddings and KV.
  void forget_images();
  // Stores the exact prefixes in memory that tiers do not have yet, until the deadline; for the end of a process.
  void save_prefixes(Deadline deadline);
  // The same without waiting, as far as the queue has room; for a moment in which the user reads.
  void queue_prefixes();
  // Queues one record of a prompt that was used once, for a moment in which nothing is computed. False: none is left.
  bool save_first_use();
  // Whether any is.
  bool has_first_uses() const;
  // Null: nothing is kept beyond the process.
  TierChain* tiers();

  // ---- for measurements that set up the caches (analysis, bench): under the engine's own codec ----------------------
  // Images' exact KV, by image_key. Null: memory does not have it.
  std::shared_ptr<const ImageKv> find_image_kv(const Sha256Digest& key);
  void put_image_kv(const Sha256Digest& key, const std::shared_ptr<const ImageKv>& kv);
  void forget_image_kv();
  // Queues it to be stored in the tiers, as when a request has computed it. CHECKs that there are tiers.
  void store_image_kv(const Sha256Digest& key, const std::shared_ptr<const ImageKv>& kv);

 private:
  EngineCaches& caches_;
  std::unique_ptr<ImageCatalog> image_entries_;
};

}  // namespace vlcache
