#include "engine/request.h"

#include <algorithm>

namespace vlcache {

int64_t CacheReport::n_encoded() const {
  return std::ranges::count(images, Image::Encoder::kComputed, &Image::encoder);
}

double CacheReport::n_loaded() const {
  double n = n_prefix_tokens;
  for (const Image& image : images) {
    if (image.loaded()) n += image.n_tokens - image.n_recomputed;
  }
  return n;
}

const ReusedBefore* reused_before(const ReuseOptions& options, size_t image) {
  if (!options.resumed) return nullptr;
  const auto at = std::ranges::find(*options.resumed, image, &ReusedBefore::image);
  return at != options.resumed->end() ? &*at : nullptr;
}

std::string name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      break;
  }
  return "error";
}

}  // namespace vlcache
