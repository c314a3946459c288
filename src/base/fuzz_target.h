// FUZZ_TARGET(name) { ... } defines a target of the program vlcache_fuzz (tests/fuzz_main.cc), which passes it `data`
// and `size`, starting from tests/corpus/name. A fault is an abort, a sanitizer's report, or exceeding the limits on
// time or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

namespace vlcache {

using FuzzFunction = int (*)(const uint8_t* data, size_t size);  // returns 0, as libFuzzer expects

inline std::map<std::string_view, FuzzFunction>& fuzz_targets() {
  static std::map<std::string_view, FuzzFunction> targets;
  return targets;
}

}  // namespace vlcache

#define FUZZ_TARGET(name)                                                                                           \
  static int fuzz_##name(const uint8_t* data, size_t size);                                                         \
  [[maybe_unused]] static const bool kIsTarget_##name = vlcache::fuzz_targets().emplace(#name, fuzz_##name).second; \
  static int fuzz_##name(const uint8_t* data, size_t size)
