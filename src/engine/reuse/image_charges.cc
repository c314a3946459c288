#include "engine/reuse/image_charges.h"

namespace vlcache {

void ImageCharges::add_own(const PromptImages& images, const std::vector<CacheReport::Image>& reports, int32_t n_done) {
  own_.resize(images.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    const bool begun = !images[i].spans.empty() && images[i].spans.front().end <= n_done;
    if (begun && own_[i].n_recomputed < reports[i].n_recomputed) own_[i] = reports[i];
  }
}

void ImageCharges::charge(std::vector<CacheReport::Image>& reports) {
  for (size_t i = 0; i < reports.size(); ++i) {
    CacheReport::Image& image = reports[i];
    if (i < own_.size() && image.n_recomputed < own_[i].n_recomputed) image = own_[i];
    if (i < own_.size() && own_[i].encoder == CacheReport::Image::Encoder::kComputed) image.encoder = own_[i].encoder;
    const auto origin = origins_.find(image.key);
    if (origin == origins_.end() || !image.loaded()) continue;
    image.source = CacheReport::Image::Source::kComputed;
    image.n_recomputed += image.n_tokens;
    image.encoder = origin->second.encoder;
    image.tier.clear();
    image.reason = "computed by itself, then reused";
    origins_.erase(origin);
  }
}

}  // namespace vlcache
