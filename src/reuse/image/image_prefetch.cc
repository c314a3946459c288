// A few loads at a time, as far as the budget has room.
#include "reuse/image/image_prefetch.h"

namespace vlcache {
namespace {

// Loads take turns: more of them would delay an image that a running request waits for.
constexpr size_t kMostLoads = 2;
constexpr double kMsPerToken = 1;  // the real cost is not stored with the record

}  // namespace

ImagePrefetch::ImagePrefetch(CacheBudget& budget, DigestCache& images, ImageStore& store, const KvShape& shape,
                             const ImageKvForm& form)
    : budget_(budget), images_(images), store_(store), shape_(shape), form_(form) {
  budget.join(*this);
}

bool ImagePrefetch::start(const Sha256Digest& image, int32_t n_tokens, ChainedTier& from) {
  if (loads_.contains(image)) return true;
  if (loads_.size() >= kMostLoads || !budget_.make_room(ImageKv::bytes_of(shape_, form_, n_tokens))) return false;
  const auto kv = std::make_shared<ImageKv>(shape_, form_, n_tokens);
  bytes_ += kv->bytes();
  loads_.emplace(image, LoadingImage{kv, store_.load(image, kv, from, Clock::now() + store_.patience())});
  return true;
}

void ImagePrefetch::take_in() {
  for (auto at = loads_.begin(); at != loads_.end();) {
    const auto next = std::next(at);
    const ImageLoad::State state = at->second.state();
    const Sha256Digest key = at->first;
    const LoadingImage image = at->second;
    if (state != ImageLoad::State::kPending) remove(at);
    if (state == ImageLoad::State::kReady) {
      if (!images_.contains(key)) images_.put(key, image.kv, image.kv->bytes(), kMsPerToken * image.kv->n_tokens());
      store_.loaded(key, image.kv, *image.load);
    }
    at = next;
  }
}

std::optional<LoadingImage> ImagePrefetch::take(const Sha256Digest& image) {
  const auto at = loads_.find(image);
  if (at == loads_.end()) return std::nullopt;
  const LoadingImage load = at->second;
  remove(at);
  return load;
}

void ImagePrefetch::remove(Loads::iterator at) {
  bytes_ -= at->second.kv->bytes();
  loads_.erase(at);
}

}  // namespace vlcache
