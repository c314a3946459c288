// Fuzzes a trace and its replay: requests, or problems.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/fuzz_target.h"
#include "reuse/trace.h"

FUZZ_TARGET(trace) {
  using namespace vlcache;
  const Trace trace = parse_trace(std::string(reinterpret_cast<const char*>(data), size), "fuzz", 4);
  LruClock lru;
  GdsfClock gdsf;
  const ReplayResult all = replay(trace, lru, 0);
  for (EvictionClock* clock : {static_cast<EvictionClock*>(&lru), static_cast<EvictionClock*>(&gdsf)}) {
    const ReplayResult some = replay(trace, *clock, 3);
    if (some.n_blocks != all.n_blocks || some.n_hits > all.n_hits) std::abort();
  }
  return 0;
}
