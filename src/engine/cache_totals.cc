#include "engine/cache_totals.h"

#include "base/contracts/kv.h"

namespace vlcache {

void CacheTotals::Cache::miss(const std::string& reason) {
  ++n_misses;
  ++misses[reason];
}

void CacheTotals::add(const CacheReport& report, int32_t n_prompt) {
  prefix.n_tokens += report.n_prefix_tokens;
  prefix.n_asked_tokens += n_prompt;
  saved_ms += report.saved_ms;
  if (report.n_prefix_tokens >= kPageSlots) {
    ++prefix.n_hits;
  } else {
    prefix.miss(report.prefix_reason);
  }
  for (const CacheReport::Image& image : report.images) {
    using Image = CacheReport::Image;
    const bool in_prefix = image.source == Image::Source::kPrefix;
    n_images_in_prefixes += in_prefix ? 1 : 0;
    (in_prefix ? n_image_tokens_in_prefixes : image_kv.n_asked_tokens) += image.n_tokens;
    if (image.loaded()) {
      ++image_kv.n_hits;
      image_kv.n_tokens += image.n_tokens - static_cast<int64_t>(image.n_recomputed);
    } else if (image.source == Image::Source::kComputed) {
      image_kv.miss(image.reason);
    }
    if (image.encoder == Image::Encoder::kHit) ++encoder.n_hits;
    if (image.encoder == Image::Encoder::kComputed) encoder.miss("first use");
  }
}

}  // namespace vlcache
