// A URL from a command line parses to an address that means the same when it is shown and parsed again, or is an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "store/redis/address.h"

FUZZ_TARGET(redis_address) {
  using namespace vlcache;
  try {
    const RedisAddress address = parse_redis_url({reinterpret_cast<const char*>(data), size});
    if (address.seeds.empty() || (!address.user.empty() && address.password.empty())) std::abort();
    for (const RedisNode& node : address.seeds) {
      if (node.host.empty() || node.port <= 0) std::abort();
    }
    const RedisAddress again = parse_redis_url(address.shown());
    if (again.seeds != address.seeds || again.db != address.db) std::abort();
    if (again.tls != address.tls || again.cluster != address.cluster) std::abort();
    if (!again.user.empty() || !again.password.empty()) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
