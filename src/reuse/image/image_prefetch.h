// ImagePrefetch loads the KV of images that queued requests will need from tiers into memory before their turn.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "reuse/cache_budget.h"
#include "reuse/image/image_store.h"

namespace vlcache {

// Images being loaded count in the budget.
class ImagePrefetch final : public CacheBudget::Member {
 public:
  // All arguments must outlive this.
  ImagePrefetch(CacheBudget& budget, DigestCache& images, ImageStore& store, const KvShape& shape,
                const ImageKvForm& form);
  ~ImagePrefetch() override { budget_.leave(*this); }  // gives up pending loads

  // Starts loading an image that a tier has. False: no room now, or enough loads are pending.
  bool start(const Sha256Digest& image, int32_t n_tokens, ChainedTier& from);
  // Moves finished loads to the memory cache, and drops failed ones.
  void take_in();
  // Hands over a pending load, to be waited for layer by layer. nullopt: none is pending.
  std::optional<LoadingImage> take(const Sha256Digest& image);

  int64_t bytes() const override { return bytes_; }
  double least_priority() const override { return std::numeric_limits<double>::infinity(); }
  void evict_least() override {}

 private:
  using Loads = std::map<Sha256Digest, LoadingImage>;
  void remove(Loads::iterator at);

  CacheBudget& budget_;
  DigestCache& images_;
  ImageStore& store_;
  KvShape shape_;
  ImageKvForm form_;
  Loads loads_;
  int64_t bytes_ = 0;
};

}  // namespace vlcache
