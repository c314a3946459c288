// cpuid, as Highway and the compiler read it.
#include "ops/cpu/cpu_features.h"

#include <hwy/highway.h>

#include <algorithm>

#include "base/error.h"

namespace vlcache::cpu {
namespace {

Isa detect() {
#if HWY_ARCH_X86
  const int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX2) == 0) return Isa::kScalar;
  if ((targets & HWY_AVX3) == 0) return Isa::kAvx2;
  return __builtin_cpu_supports("avx512bf16") != 0 ? Isa::kAvx512Bf16 : Isa::kAvx512;
#else
  return Isa::kAvx2;
#endif
}

}  // namespace

Isa detect_isa(Isa cap) {
  static const Isa best = detect();
  return std::min(best, cap);
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  CHECK(false);
}

}  // namespace vlcache::cpu
