// next_queued() picks the queued request to admit next: the one with the most of its prompt cached, unless others have
// waited longer (longest prefix first, as in SGLang, arXiv:2312.07104; the ageing is ours).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace vlcache {

// A queued request.
struct QueuedRequest {
  int64_t n_matched = 0;  // tokens of its prompt that would not be computed if it started now
  int64_t n_turns = 0;    // requests that were admitted since it arrived
  int32_t priority = 0;   // the highest are admitted first, whatever the others would hit
};

// The index of the request to admit next, the first among equals; `queue` has at least one. Only requests that arrived
// fewer than kPatience admissions later may pass one of the same priority, so no request waits forever.
size_t next_queued(std::span<const QueuedRequest> queue);

// Ageing: after this many admissions a request without a hit is admitted before a new one with the largest hit, so at
// most 1 admission in 32 may evict what queued requests would have hit.
inline constexpr int64_t kPatience = 32;

}  // namespace vlcache
