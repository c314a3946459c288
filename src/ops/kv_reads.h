// How much KV attention reads, for every backend to report.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/backend.h"

namespace vlcache {

// Bytes of the pages that the newest row of a sequence sees, in the forms in which it sees them; with a window, the
// pages within it and the sinks', or all that a view with slot_pos holds.
inline int64_t seen_page_bytes(const AttentionSeq& seq, const AttentionArgs& args) {
  if (seq.n_rows == 0) return 0;
  const KvView& kv = seq.kv;
  const int32_t n_after = seq.n_after != nullptr ? *std::min_element(seq.n_after, seq.n_after + seq.n_rows) : 0;
  const auto pages_of = [](int64_t n_slots) { return (n_slots + kPageSlots - 1) / kPageSlots; };
  int64_t bytes = 0;
  for (int32_t h = 0; h < kv.n_kv_heads; ++h) {
    const int64_t limit = std::max(kv.n_slots[h] - n_after, 0), n = pages_of(limit);
    if (args.window > 0 && kv.slot_pos != nullptr) {
      for (int64_t i = 0; i < n; ++i) bytes += kv.holds(h, i) ? kv.page_bytes(h, i, i + 1, coded_end(limit - 1)) : 0;
      continue;
    }
    const bool windowed = args.window > 0;
    const int64_t first = windowed ? std::max<int64_t>(limit - args.window, 0) / kPageSlots : 0;
    const int64_t sinks = windowed ? std::min(first, pages_of(args.n_sinks)) : 0;
    const int32_t end = coded_end(limit - 1);
    bytes += kv.page_bytes(h, 0, sinks, end) + kv.page_bytes(h, first, n, end);
  }
  return bytes;
}

}  // namespace vlcache
