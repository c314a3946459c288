// Fuzzes --cache-mode: a mode whose rule decides without a fault, or an Error.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "policy/cache_mode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vlcache;
  try {
    const CacheMode mode = parse_cache_mode({reinterpret_cast<const char*>(data), size});
    if (mode.n_sinks < 0 || mode.window < 0) std::abort();
    if (mode.rule != nullptr) {
      constexpr std::array<int32_t, 4> kSlots{0, 1, 64, 987};
      KeepPlan plan;
      mode.rule->on_step({2, 2, kSlots}, plan);
    }
  } catch (const Error&) {
  }
  return 0;
}
