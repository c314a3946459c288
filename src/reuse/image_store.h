// ImageStore: what images have become, beyond this process: their KV and their embeddings, as records in tiers (disk).
// Two records of an image, so that who only reuses what is exact stores embeddings alone, and nobody stores them twice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/tensor.h"
#include "cache/kv_shape.h"
#include "reuse/image_kv.h"
#include "store/tier_chain.h"

namespace vlcache {

// An image's KV on its way here, layer by layer, while others compute.
class ImageLoad {
 public:
  ImageLoad(std::shared_ptr<ImageKv> image, RecordLoad load, Deadline deadline, std::string_view tier)
      : image_(std::move(image)),
        load_(std::move(load)),
        deadline_(deadline),
        tier_(tier),
        ready_(static_cast<size_t>(image_->n_layers()), false) {}

  // Layers that were waited for hold what was stored; others anything.
  const std::shared_ptr<ImageKv>& image() const { return image_; }
  std::string_view tier() const { return tier_; }
  // Until K and V of the layer are in place. False: they will not be.
  bool wait(int32_t layer);
  // Whether every layer is there, without waiting.
  bool complete() const;
  // Why not, behind a wait that failed.
  Miss miss() const;

 private:
  std::shared_ptr<ImageKv> image_;
  RecordLoad load_;
  Deadline deadline_;
  std::string_view tier_;
  std::vector<bool> ready_;   // [n_layers] waited for, and right
  std::optional<Miss> miss_;  // that of a wait; none: the load's
};

class ImageStore {
 public:
  struct Options {
    int32_t admit = 1;          // use from which on something is stored
    double deadline_ms = 5000;  // a load that takes longer is a miss
  };
  // Of the model whose weights, configuration and arithmetic have this fingerprint. The chain must outlive it.
  // KV is stored in `form`, and found in no other.
  ImageStore(TierChain& chain, const Options& options, const ModelFingerprint& model, const KvShape& shape,
             const ImageKvForm& form);

  // Whether a tier has its KV.
  bool has(const Sha256Digest& image);
  // Starts loading. Null: no tier has it. What is found may still turn out to be of no use.
  std::shared_ptr<ImageLoad> load(const Sha256Digest& image, int32_t n_tokens);
  // An image was used whose KV is this, `computed` for it or not: it is stored if it is to be from this use on.
  void used(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, bool computed);

  // Rows of embeddings [n_tokens, hidden], dense. False: nobody has them, or not in time; `to` is worth nothing then.
  bool load_rows(const Sha256Digest& image, const Tensor& to);
  void rows_used(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner, bool computed);

 private:
  RecordKey key_of(const Sha256Digest& image, std::string layout) const;
  Deadline deadline() const;
  bool admits(const RecordKey& key, bool computed);

  TierChain& chain_;
  Options options_;
  ModelFingerprint model_;
  KvShape shape_;
  ImageKvForm form_;
  std::string kv_layout_;
  std::map<std::pair<Sha256Digest, std::string>, int32_t> n_uses_;  // of what is not stored yet
};

}  // namespace vlcache
