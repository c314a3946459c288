// Joining what several parts of a policy want to know.
#include "base/capture.h"

#include <algorithm>
#include <cmath>

namespace vlcache {

float gumbel_noise(uint64_t seed, int32_t layer, int32_t head, int32_t token) {
  // splitmix64 of a number that no two slots share
  uint64_t z =
      seed + (static_cast<uint64_t>(token) << 32 | static_cast<uint64_t>(layer) << 16 | static_cast<uint64_t>(head)) *
                 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  const float u = (static_cast<float>(z >> 41) + 0.5f) * 0x1p-23f;  // never 0 or 1
  return -std::log(-std::log(u));
}

bool CaptureRequest::join(const CaptureRequest& other) {
  const bool alike = reduce == other.reduce && window == other.window && ahead == other.ahead &&
                     window_weights == other.window_weights;
  const bool counts_alike = small_is_uniform == other.small_is_uniform && threshold == other.threshold;
  const bool noise_alike = !needs_all_rows() || !other.needs_all_rows() || gumbel_seed == other.gumbel_seed;
  if (!alike || !noise_alike || (window_counts && other.window_counts && !counts_alike)) return false;
  if (other.window_counts) {
    small_is_uniform = other.small_is_uniform;
    threshold = other.threshold;
  }
  if (other.needs_all_rows()) gumbel_seed = other.gumbel_seed;
  all_sums |= other.all_sums;
  all_max |= other.all_max;
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

}  // namespace vlcache
