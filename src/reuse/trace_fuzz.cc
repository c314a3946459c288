// Fuzzes a trace and its replay: requests, or problems.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "reuse/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vlcache;
  const Trace trace = parse_trace(std::string(reinterpret_cast<const char*>(data), size), "fuzz", 4);
  const ReplayResult all = replay(trace, EvictionOrder::kLru, 0);
  for (const EvictionOrder order : {EvictionOrder::kLru, EvictionOrder::kGdsf}) {
    const ReplayResult some = replay(trace, order, 3);
    if (some.n_blocks != all.n_blocks || some.n_hits > all.n_hits) std::abort();
  }
  return 0;
}
