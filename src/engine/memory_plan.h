// What of the machine's memory is for what, where nobody says otherwise.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vlcache {

// For what is kept beyond running requests (--cache-ram), of what machine and cgroup grant.
inline int64_t default_cache_bytes(int64_t usable) { return usable / 4; }

// For KV pages (--kv-memory): the rest of what weights and cache leave is for workspaces and everybody else. A model
// that leaves nothing gets a little nevertheless: few fill their caches, and the alternative is not to run.
inline int64_t default_kv_bytes(int64_t usable, int64_t weights, int64_t cache) {
  return std::max((usable - weights - cache) / 4 * 3, usable / 16);
}

}  // namespace vlcache
