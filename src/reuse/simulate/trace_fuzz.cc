// Fuzzes a trace and its replay: requests, or problems.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "reuse/simulate/replay.h"

FUZZ_TARGET(trace) {
  using namespace vlcache;
  const Trace trace = parse_trace(std::string(reinterpret_cast<const char*>(data), size), "fuzz", 4);
  for (const TraceRequest& request : trace.requests) {
    int64_t end = 0;
    for (const TraceImage& image : request.images) {
      if (image.begin < end || image.n_tokens < 1) std::abort();
      end = image.end();
    }
    if (end > request.n_tokens) std::abort();
  }
  ReplayOptions options{.order = EvictionOrder::kLru, .disk = {}, .shared = {}, .block_tokens = 4};
  const ReplayResult all = replay(trace, options);
  for (const EvictionOrder order : {EvictionOrder::kLru, EvictionOrder::kGdsf}) {
    options.order = order;
    options.capacity = 3;
    const ReplayResult some = replay(trace, options);
    if (some.n_blocks != all.n_blocks || some.n_images != all.n_images) std::abort();
    if (all.n_images == 0 && some.n_hits > all.n_hits) std::abort();
  }
  options = {.capacity = 40,
             .disk = 30,
             .shared = 60,
             .prefixes = PrefixSaving::kAlways,
             .n_replicas = 2,
             .route = Route::kPrefix,
             .block_tokens = 4};
  const ReplayResult tiers = replay(trace, options);
  if (tiers.n_hits > tiers.n_blocks || tiers.n_images_found() > tiers.n_images) std::abort();
  return 0;
}
