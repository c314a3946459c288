// ImageStore keeps the KV and the embeddings of images beyond this process, as records in tiers. Two records per image,
// KV and embeddings, so that exact-only deployments store just the embeddings, and neither is stored twice.
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
#include "reuse/image/image_kv.h"
#include "store/tier_chain.h"

namespace vlcache {

// Which tiers have the images of a request: queried ahead, once, so that no computing thread waits for an answer.
class ImageSearch {
 public:
  ImageSearch() = default;  // no tier has any image
  // tiers: of the KV of each image, then of the embeddings of each. `patience`: how long a request waits for tiers.
  ImageSearch(TierSearch tiers, size_t n_images, Clock::duration patience)
      : tiers_(std::move(tiers)), n_images_(n_images), patience_(patience) {}

  // Whether the tiers of an image's KV and embeddings are known by then, or will not be in time. The tiers' time limit,
  // for the search and for loading, begins with the first call that has to wait in vain, or with start().
  bool wait(size_t image, Deadline until);
  void start();
  void stop() { by_ = kNoDeadline; }  // the next start() begins a new limit
  // Whether the tiers have really answered: wait() is also true after their time limit.
  bool answered(size_t image);
  // Set by start(): after this time, pending answers and loads are misses.
  Deadline by() const { return by_; }
  // As far as is known by now. Null: no tier.
  ChainedTier* kv(size_t image) { return image < n_images_ ? tiers_.tier(image) : nullptr; }
  ChainedTier* rows(size_t image) { return image < n_images_ ? tiers_.tier(n_images_ + image) : nullptr; }

 private:
  TierSearch tiers_;
  size_t n_images_ = 0;
  Clock::duration patience_{};
  Deadline by_ = kNoDeadline;
};

// A load of an image's record, in sections, while other threads compute.
class ImageLoad {
 public:
  // sections: of the record. After `by` a pending load is a miss.
  ImageLoad(RecordLoad load, size_t n_sections, ChainedTier& from, Deadline by)
      : load_(std::move(load)), n_sections_(n_sections), from_(&from), by_(by) {}

  enum class State : uint8_t { kPending, kReady, kMissed };
  // State of a section, waiting until `until` at the latest: a ready section is verified, and does not change.
  State wait(size_t section, Deadline until) const;
  // The loaded contents are invalid: all of it is missed.
  void refuse(Miss miss) { refused_ = std::move(miss); }
  // State of the whole load, without waiting.
  State state() const { return wait(n_sections_ - 1, Deadline::min()); }
  // The reason of the miss.
  Miss miss() const;
  std::string_view tier() const { return from_->tier->name(); }
  const ChainedTier& from() const { return *from_; }
  int64_t created_ms() const { return load_.created_ms(); }
  double saves_ms() const { return load_.saves_ms(); }

 private:
  RecordLoad load_;
  size_t n_sections_;
  const ChainedTier* from_;
  Deadline by_;
  std::optional<Miss> refused_;
};

// An image's KV and its load: a layer's contents are undefined until it is ready.
struct LoadingImage {
  std::shared_ptr<const ImageKv> kv;
  std::shared_ptr<ImageLoad> load;

  // State of a layer, as ImageLoad::wait: a layer with token numbers outside the image is refused.
  ImageLoad::State wait(int32_t layer, Deadline until) const;
  // State of all layers, without waiting.
  ImageLoad::State state() const;
};

class ImageStore {
 public:
  struct Options {
    int32_t admit = 1;          // number of uses from which on a record is stored
    double deadline_ms = 5000;  // the longest time that a request waits for tiers
  };
  // For the model whose weights, configuration and arithmetic have this fingerprint, and whose embeddings are rows of
  // row_size values of rows_dtype. KV is stored in `form`; KV of another form is a miss. The chain must outlive it.
  ImageStore(TierChain& chain, const Options& options, const ModelFingerprint& model, const KvShape& shape,
             const ImageKvForm& form, DType rows_dtype, int64_t row_size);

  // The longest time that a request waits for tiers.
  Clock::duration patience() const {
    return std::chrono::microseconds(static_cast<int64_t>(options_.deadline_ms * 1000));
  }
  // Asks the tiers which of these images they have.
  ImageSearch search(std::span<const Sha256Digest> images);
  // Starts loading from the tier that has the image, which may still turn out to be unusable; one section per layer. A
  // layer's contents are undefined until its section is ready.
  std::unique_ptr<ImageLoad> load(const Sha256Digest& image, const std::shared_ptr<ImageKv>& to, ChainedTier& from,
                                  Deadline by);
  // Loads embeddings [n_tokens, hidden], dense, which `owner` holds; one section.
  std::unique_ptr<ImageLoad> load_rows(const Sha256Digest& image, const Tensor& to, std::shared_ptr<void> owner,
                                       ChainedTier& from, Deadline by);

  // Counts a use of an image with this KV, `computed` for it or found in memory, and stores it from the admit-th use
  // on. `saves_ms`: what a hit saves; 0: not known.
  void used(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, bool computed, double saves_ms = 0);
  void rows_used(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner, bool computed,
                 double saves_ms = 0);
  // Counts a use of an image that was loaded completely, and copies it to tiers nearer than its own, with its creation
  // time.
  void loaded(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, const ImageLoad& load);
  void rows_loaded(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner,
                   const ImageLoad& load);
  // Whether a tier on this machine has the image's KV.
  bool is_near(const Sha256Digest& image) const { return chain_.is_near(key_of(image, kv_layout_)); }
  // Whether a record is stored at its first use.
  bool stores_at_once() const { return options_.admit <= 1; }
  // Claims an image that no tier has: TierChain::claim(), for as long as a request waits for tiers.
  RecordAnswer claim(const Sha256Digest& image) {
    return chain_.claim(key_of(image, rows_layout_), patience(), Clock::now() + patience());
  }
  void release(const Sha256Digest& image) { chain_.release(key_of(image, rows_layout_)); }
  // Queues the erasure of an image in all tiers: its embeddings, and its KV in this form.
  void erase(const Sha256Digest& image);

 private:
  Record record_of(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv) const;
  Record record_of(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner) const;
  RecordKey key_of(const Sha256Digest& image, std::string layout) const;
  void save(Record record, bool computed, double saves_ms);
  void bring_nearer(Record record, const ImageLoad& load);
  int32_t count_use(const RecordKey& key);

  TierChain& chain_;
  Options options_;
  ModelFingerprint model_;
  std::string kv_layout_, rows_layout_;
  std::map<std::pair<Sha256Digest, std::string>, int32_t> n_uses_;  // of records that are not stored yet
};

}  // namespace vlcache
