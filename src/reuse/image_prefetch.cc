// Few at a time, as far as there is room.
#include "reuse/image_prefetch.h"

namespace vlcache {
namespace {

// Loads take turns: with more of them, an image that somebody computes with would come later.
constexpr size_t kMostLoads = 2;
constexpr double kMsPerToken = 1;  // what computing it took is not known any more

}  // namespace

ImagePrefetch::ImagePrefetch(CacheLedger& ledger, DigestCache& images, ImageStore& store, const KvShape& shape)
    : ledger_(ledger), images_(images), store_(store), shape_(shape) {
  ledger.join(*this);
}

bool ImagePrefetch::start(const Sha256Digest& image, int32_t n_tokens) {
  if (loads_.contains(image)) return true;
  if (loads_.size() >= kMostLoads || !ledger_.make_room(ImageKv::bytes_of(shape_, n_tokens))) return false;
  std::shared_ptr<ImageLoad> load = store_.load(image, n_tokens);
  if (load == nullptr) return true;  // it has gone meanwhile
  bytes_ += load->image()->bytes();
  loads_.emplace(image, std::move(load));
  return true;
}

void ImagePrefetch::take_in() {
  for (auto at = loads_.begin(); at != loads_.end();) {
    const auto next = std::next(at);
    const std::shared_ptr<ImageLoad> load = at->second;
    if (load->complete()) {
      const Sha256Digest key = at->first;
      remove(at);
      const std::shared_ptr<ImageKv>& image = load->image();
      if (!images_.contains(key)) images_.put(key, image, image->bytes(), kMsPerToken * image->n_tokens());
    } else if (load->failed()) {
      remove(at);
    }
    at = next;
  }
}

std::shared_ptr<ImageLoad> ImagePrefetch::take(const Sha256Digest& image) {
  const auto at = loads_.find(image);
  if (at == loads_.end()) return nullptr;
  std::shared_ptr<ImageLoad> load = at->second;
  remove(at);
  return load;
}

void ImagePrefetch::remove(Loads::iterator at) {
  bytes_ -= at->second->image()->bytes();
  loads_.erase(at);
}

}  // namespace vlcache
