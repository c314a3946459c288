// One program for all fuzz targets: vlcache_fuzz TARGET [libFuzzer's arguments]; without a target, it prints their
// names.
#include <cstdio>
#include <cstdlib>

#include "base/fuzz_target.h"

namespace {

vlcache::FuzzFunction g_target = nullptr;

}  // namespace

// libFuzzer's hook: takes the target's name out of the arguments.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const auto& targets = vlcache::fuzz_targets();
  const auto target = *argc > 1 ? targets.find((*argv)[1]) : targets.end();
  if (target == targets.end()) {
    for (const auto& [name, function] : targets) std::printf("%.*s\n", static_cast<int>(name.size()), name.data());
    std::exit(*argc > 1 ? 1 : 0);
  }
  g_target = target->second;
  (*argv)[1] = (*argv)[0];
  ++*argv;
  --*argc;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { return g_target(data, size); }
