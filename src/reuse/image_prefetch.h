// ImagePrefetch: the KV of images that requests in line will ask for, brought from tiers to memory before their turn.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "reuse/cache_ledger.h"
#include "reuse/image_store.h"

namespace vlcache {

// What is on its way counts in the ledger.
class ImagePrefetch final : public CacheLedger::Member {
 public:
  // All of them must outlive it.
  ImagePrefetch(CacheLedger& ledger, DigestCache& images, ImageStore& store, const KvShape& shape,
                const ImageKvForm& form);
  ~ImagePrefetch() override { ledger_.leave(*this); }  // what is on its way is given up

  // Starts loading an image that a tier has. False: there is no room now, or enough is on its way.
  bool start(const Sha256Digest& image, int32_t n_tokens, ChainedTier& from);
  // What has come is found in memory from now on; what will not come is forgotten.
  void take_in();
  // Hands over what is on its way, to be waited for layer by layer. None: it is not.
  std::optional<LoadingImage> take(const Sha256Digest& image);

  int64_t bytes() const override { return bytes_; }
  double least_priority() const override { return std::numeric_limits<double>::infinity(); }
  void evict_least() override {}

 private:
  using Loads = std::map<Sha256Digest, LoadingImage>;
  void remove(Loads::iterator at);

  CacheLedger& ledger_;
  DigestCache& images_;
  ImageStore& store_;
  KvShape shape_;
  ImageKvForm form_;
  Loads loads_;
  int64_t bytes_ = 0;
};

}  // namespace vlcache
