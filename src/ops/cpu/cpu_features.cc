// cpuid, as Highway and the compiler read it; AMX asks the kernel, too.
#include "ops/cpu/cpu_features.h"

#include <hwy/highway.h>
#if HWY_ARCH_X86
#include <cpuid.h>
#endif
#if HWY_ARCH_X86 && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>

#include "base/error.h"
#include "base/os/signals.h"
#include "ops/cpu/limits/limits.h"

namespace vlcache::cpu {
namespace {

#if HWY_ARCH_X86
// AMX registers are 8 KiB a thread, so Linux gives them to processes that ask, once for all their threads. It refuses
// where a thread has an alternate signal stack that such registers do not fit, and such a stack to every thread later.
bool may_use_amx() {
#if defined(VLCACHE_EMULATED_AMX)  // by tests
  return true;
#elif defined(__linux__)
  constexpr unsigned kTiles = 1u << 24, kBf16 = 1u << 22, kBytes = 1u << 25;  // leaf 7, edx
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (~d & (kTiles | kBf16 | kBytes)) != 0) return false;
  ensure_signal_stack();  // before the request, so that it is one of those that the kernel looks at
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// What limit_machine() leaves.
InstructionSet most_of_machine = kInstructionSets.front();

Isa detect() {
#if HWY_ARCH_X86
  const int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX2) == 0) return Isa::kScalar;
  if ((targets & HWY_AVX3) == 0) return Isa::kAvx2;
  if (__builtin_cpu_supports("avx512bf16") == 0) return Isa::kAvx512;
  return may_use_amx() ? Isa::kAmxBf16 : Isa::kAvx512Bf16;
#else
  return Isa::kAvx2;
#endif
}

}  // namespace

Isa detect_isa(Isa cap) {
  static const Isa best = detect();
  return std::min({best, cap, most_of_machine.isa});
}

void limit_machine(const InstructionSet& most) { most_of_machine = most; }

Isa fastest_isa(Isa cap) {
  const Isa best = detect_isa(cap);
  return best == Isa::kAvx512Bf16 && !bf16_dots_pay() ? Isa::kAvx512 : best;
}

bool has_byte_dots(Isa isa) {
  if (!most_of_machine.byte_dots) return false;
#if HWY_ARCH_X86
  constexpr unsigned kAvx512Vnni = 1u << 11, kAvxVnni = 1u << 4;  // leaf 7, ecx; leaf 7.1, eax
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (isa >= Isa::kAvx512) return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & kAvx512Vnni) != 0;
  if (isa == Isa::kAvx2) return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
#endif
  return false;
}

std::string_view isa_name(Isa isa) {
  // Of the two names of a level, the one without products of bytes comes last.
  const auto named = std::find_if(kInstructionSets.rbegin(), kInstructionSets.rend(),
                                  [isa](const InstructionSet& set) { return set.isa == isa; });
  CHECK(named != kInstructionSets.rend());
  return named->name;
}

}  // namespace vlcache::cpu
