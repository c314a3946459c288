// default_cache_bytes() and default_kv_bytes() divide the machine's memory where the user sets no size.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vlcache {

// For caches beyond running requests (--cache-ram), of what machine and cgroup grant.
inline int64_t default_cache_bytes(int64_t usable) { return usable / 4; }

// For KV pages (--kv-memory): the rest of what weights and cache leave is for workspaces and other processes. A model
// that leaves nothing gets a little nevertheless: caches are seldom full, and the alternative is not to run.
inline int64_t default_kv_bytes(int64_t usable, int64_t weights, int64_t cache) {
  return std::max((usable - weights - cache) / 4 * 3, usable / 16);
}

}  // namespace vlcache
