// ImageStore: what images have become, beyond this process: their KV and their embeddings, as records in tiers.
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

// Where the images of a request are: asked of the tiers ahead, once, so that nobody who computes waits for an answer.
class ImageSearch {
 public:
  ImageSearch() = default;  // of nothing: nobody has any
  // tiers: of the KV of each image, then of the embeddings of each. `patience`: how long a request waits for tiers.
  ImageSearch(TierSearch tiers, size_t n_images, Clock::duration patience)
      : tiers_(std::move(tiers)), n_images_(n_images), patience_(patience) {}

  // Whether it is known by then where an image's KV and embeddings are. The time that the tiers have, for this and for
  // loading, begins with the first question to which the answer is no, or with start().
  bool wait(size_t image, Deadline until);
  void start();
  void stop() { by_ = kNoDeadline; }  // it begins anew
  // Whether it is known indeed: their time may be over.
  bool answered(size_t image);
  // From start() on: when what is not there is done without.
  Deadline by() const { return by_; }
  // As far as is known by now. Null: nobody.
  ChainedTier* kv(size_t image) { return image < n_images_ ? tiers_.tier(image) : nullptr; }
  ChainedTier* rows(size_t image) { return image < n_images_ ? tiers_.tier(n_images_ + image) : nullptr; }

 private:
  TierSearch tiers_;
  size_t n_images_ = 0;
  Clock::duration patience_{};
  Deadline by_ = kNoDeadline;
};

// Something of an image on its way here, in sections, while others compute.
class ImageLoad {
 public:
  // sections: of the record. By then it is there, or late.
  ImageLoad(RecordLoad load, size_t n_sections, ChainedTier& from, Deadline by)
      : load_(std::move(load)), n_sections_(n_sections), from_(&from), by_(by) {}

  enum class State : uint8_t { kPending, kReady, kMissed };
  // Of a section, at `until` at the latest: what was ready is right, and stays so.
  State wait(size_t section, Deadline until) const;
  // What has come makes no sense: all of it is missed.
  void refuse(Miss miss) { refused_ = std::move(miss); }
  // Of all of them, without waiting.
  State state() const { return wait(n_sections_ - 1, Deadline::min()); }
  // Why it is missed.
  Miss miss() const;
  std::string_view tier() const { return from_->tier->name(); }
  const ChainedTier& from() const { return *from_; }
  int64_t created_ms() const { return load_.created_ms(); }

 private:
  RecordLoad load_;
  size_t n_sections_;
  const ChainedTier* from_;
  Deadline by_;
  std::optional<Miss> refused_;
};

// An image's KV and how it comes: layers that were waited for hold what was stored, others anything.
struct LoadingImage {
  std::shared_ptr<const ImageKv> kv;
  std::shared_ptr<ImageLoad> load;

  // Of a layer, as ImageLoad::wait: one that says it has other tokens than there are is refused.
  ImageLoad::State wait(int32_t layer, Deadline until) const;
  // Of all of them, without waiting.
  ImageLoad::State state() const;
};

class ImageStore {
 public:
  struct Options {
    int32_t admit = 1;          // use from which on something is stored
    double deadline_ms = 5000;  // what a request waits for tiers, at most
  };
  // Of the model whose weights, configuration and arithmetic have this fingerprint, and whose embeddings are rows of so
  // many values of this type. KV is stored in `form`, and found in no other. The chain must outlive it.
  ImageStore(TierChain& chain, const Options& options, const ModelFingerprint& model, const KvShape& shape,
             const ImageKvForm& form, DType rows_dtype, int64_t row_size);

  // What a request waits for tiers, at most.
  Clock::duration patience() const {
    return std::chrono::microseconds(static_cast<int64_t>(options_.deadline_ms * 1000));
  }
  // Asks the tiers which of these images they have.
  ImageSearch search(std::span<const Sha256Digest> images);
  // Starts loading from where the image was found, which may still turn out to be of no use; one section a layer. Until
  // one is ready, what the layer holds is anything.
  std::unique_ptr<ImageLoad> load(const Sha256Digest& image, const std::shared_ptr<ImageKv>& to, ChainedTier& from,
                                  Deadline by);
  // Likewise embeddings [n_tokens, hidden], dense, which `owner` holds; one section.
  std::unique_ptr<ImageLoad> load_rows(const Sha256Digest& image, const Tensor& to, std::shared_ptr<void> owner,
                                       ChainedTier& from, Deadline by);

  // An image was used whose KV is this, `computed` for it or found in memory: it is stored if it is to be from this use
  // on.
  void used(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, bool computed);
  void rows_used(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner, bool computed);
  // It was used and loaded, all of it: tiers nearer than the one that had it are given it, as old as it is.
  void loaded(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, const ImageLoad& load);
  void rows_loaded(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner,
                   const ImageLoad& load);
  // Forgets an image, soon, in all tiers: its embeddings, and its KV in this form.
  void erase(const Sha256Digest& image);

 private:
  Record record_of(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv) const;
  Record record_of(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner) const;
  RecordKey key_of(const Sha256Digest& image, std::string layout) const;
  void save(const Record& record, bool computed);
  void bring_nearer(Record record, const ImageLoad& load);
  int32_t count_use(const RecordKey& key);

  TierChain& chain_;
  Options options_;
  ModelFingerprint model_;
  std::string kv_layout_, rows_layout_;
  std::map<std::pair<Sha256Digest, std::string>, int32_t> n_uses_;  // of what is not stored yet
};

}  // namespace vlcache
