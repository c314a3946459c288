#include "base/contracts/capture.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/splitmix.h"

namespace vlcache {

float gumbel_noise(uint64_t seed, int32_t layer, int32_t head, int32_t token) {
  const uint64_t slot =  // unique to the slot
      static_cast<uint64_t>(token) << 32 | static_cast<uint64_t>(layer) << 16 | static_cast<uint64_t>(head);
  const float u = (static_cast<float>(splitmix(seed + slot * kSplitmixStep) >> 41) + 0.5f) * 0x1p-23f;  // never 0 or 1
  return -std::log(-std::log(u));
}

bool CaptureRequest::join(const CaptureRequest& other) {
  const bool alike = reduce == other.reduce && window == other.window && ahead == other.ahead &&
                     replay == other.replay && window_weights == other.window_weights;
  const bool counts_alike = small_is_uniform == other.small_is_uniform && threshold == other.threshold;
  const bool noise_alike = !needs_all_rows() || !other.needs_all_rows() || gumbel_seed == other.gumbel_seed;
  if (future > 0 && other.future > 0 && (future != other.future || future_skip != other.future_skip)) return false;
  if (band > 0 && other.band > 0 && band != other.band) return false;
  if (!alike || !noise_alike || (window_counts && other.window_counts && !counts_alike)) return false;
  if (other.window_counts) {
    small_is_uniform = other.small_is_uniform;
    threshold = other.threshold;
  }
  if (other.needs_all_rows()) gumbel_seed = other.gumbel_seed;
  if (other.future > 0) {
    future = other.future;
    future_skip = other.future_skip;
  }
  all_sums |= other.all_sums;
  all_max |= other.all_max;
  if (other.band > 0) band = other.band;
  window_queries |= other.window_queries;
  window_sums |= other.window_sums;
  window_max |= other.window_max;
  window_counts |= other.window_counts;
  return true;
}

bool CaptureRequest::answers(const CaptureRequest& other) const {
  CaptureRequest joined = *this;
  return joined.join(other) && joined == *this;
}

size_t join(std::vector<CaptureRequest>& all, const CaptureRequest& request) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].join(request)) return i;
  }
  all.push_back(request);
  return all.size() - 1;
}

const Capture& answering(std::span<const Capture* const> captures, const CaptureRequest& request) {
  const auto it = std::ranges::find_if(captures, [&](const Capture* c) { return c->request.answers(request); });
  CHECK(it != captures.end());
  return **it;
}

}  // namespace vlcache
