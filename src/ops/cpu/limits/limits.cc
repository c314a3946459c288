#include "ops/cpu/limits/limits.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/threads.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/limits/limits_kernels.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/limits/limits.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/quant/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// n multiply-adds of one vector each, in 12 chains; returns the operations done.
int64_t fma_loop(int64_t n, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  V a = hn::Set(d, *sink), b = a, c = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a, m = a;
  const V x = hn::Set(d, 0.5f + *sink), y = hn::Set(d, *sink + 1.0f);
  // Chains differ by their start, so none can be folded into another.
  b = hn::Add(b, y), c = hn::Add(b, y), e = hn::Add(c, y), f = hn::Add(e, y), g = hn::Add(f, y), h = hn::Add(g, y);
  i = hn::Add(h, y), j = hn::Add(i, y), k = hn::Add(j, y), l = hn::Add(k, y), m = hn::Add(l, y);
  for (int64_t step = 0; step < n; step += 12) {
    a = hn::MulAdd(a, x, y), b = hn::MulAdd(b, x, y), c = hn::MulAdd(c, x, y), e = hn::MulAdd(e, x, y);
    f = hn::MulAdd(f, x, y), g = hn::MulAdd(g, x, y), h = hn::MulAdd(h, x, y), i = hn::MulAdd(i, x, y);
    j = hn::MulAdd(j, x, y), k = hn::MulAdd(k, x, y), l = hn::MulAdd(l, x, y), m = hn::MulAdd(m, x, y);
  }
  const V left = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i)));
  *sink = hn::GetLane(hn::Add(left, hn::Add(hn::Add(j, k), hn::Add(l, m))));
  return n * static_cast<int64_t>(hn::Lanes(d)) * 2;
}

// n dot products of four bytes in every lane; returns the operations done, 0 without such an instruction.
int64_t byte_dot_loop(int64_t n, uint32_t* sink) {
#if defined(VLCACHE_BYTE_DOTS)
  const I32Tag di;
  const U32Vec x = hn::Set(U32Tag(), *sink | 0x01020304u);
  I32Vec sums[12];
#pragma GCC unroll 12
  for (I32Vec& sum : sums) sum = hn::Zero(di);
  for (int64_t step = 0; step < n; step += 12) {
#pragma GCC unroll 12
    for (I32Vec& sum : sums) sum = byte_dot(sum, x, x);
  }
  for (const I32Vec& sum : sums) *sink ^= static_cast<uint32_t>(hn::GetLane(sum));
  return n * static_cast<int64_t>(hn::Lanes(di)) * 8;
#else
  static_cast<void>(n), static_cast<void>(sink);
  return 0;
#endif
}

// n products of AVX2 with words, each with an addition.
void word_loop([[maybe_unused]] int64_t n, [[maybe_unused]] uint32_t* sink) {
#if HWY_TARGET == HWY_AVX2
  const U32Vec x = hn::Set(U32Tag(), *sink | 0x01020304u);
  I32Vec sums[12];
#pragma GCC unroll 12
  for (I32Vec& sum : sums) sum = hn::Zero(I32Tag());
  for (int64_t step = 0; step < n; step += 12) {
#pragma GCC unroll 12
    for (I32Vec& sum : sums) sum = add_word_pairs(sum, hn::BitCast(U32Tag(), sum), x);
  }
  for (const I32Vec& sum : sums) *sink ^= static_cast<uint32_t>(hn::GetLane(sum));
#endif
}

// Reads `bytes` (a multiple of 1024) front to back.
uint32_t read_loop(const std::byte* p, int64_t bytes) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  const uint32_t* x = reinterpret_cast<const uint32_t*>(p);
  for (size_t i = 0; i < static_cast<size_t>(bytes) / 4; i += 4 * lanes) {
    a = hn::Xor(a, hn::Load(d, x + i)), b = hn::Xor(b, hn::Load(d, x + i + lanes));
    c = hn::Xor(c, hn::Load(d, x + i + 2 * lanes)), e = hn::Xor(e, hn::Load(d, x + i + 3 * lanes));
  }
  return hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)));
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
namespace {

HWY_EXPORT(fma_loop);
HWY_EXPORT(byte_dot_loop);
HWY_EXPORT(word_loop);
HWY_EXPORT(read_loop);

// Larger than the caches of today's server sockets that two cores can fill.
constexpr int64_t kReadBytes = int64_t{512} << 20;
constexpr int64_t kPieceBytes = int64_t{64} << 20;  // timed at once: a millisecond or two
constexpr int64_t kLoopSteps = 48 * 40000;          // about half a millisecond

// The median rate (work per second) of running `work` again and again for `seconds`, at least five times.
double median_rate(double seconds, const std::function<double()>& work) {
  std::vector<double> rates;
  const Clock::time_point start = Clock::now();
  while (rates.size() < 5 || seconds_since(start) < seconds) {
    const Clock::time_point begin = Clock::now();
    const double done = work();
    rates.push_back(done / seconds_since(begin));
  }
  const auto middle = rates.begin() + static_cast<int64_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

// Runs `loop` once on every thread; the sum of what it returns.
double on_all_threads(const std::function<double()>& loop) {
  std::atomic<int64_t> total{0};
  parallel_for(n_threads(), [&](int64_t, int) { total += static_cast<int64_t>(loop()); });
  return static_cast<double>(total.load());
}

// Seconds that `loop` takes at least.
double least_seconds(const std::function<void()>& loop) {
  double least = HUGE_VAL;
  for (int i = 0; i < 8; ++i) {
    const Clock::time_point begin = Clock::now();
    loop();
    least = std::min(least, seconds_since(begin));
  }
  return least;
}

}  // namespace

bool bf16_dots_pay() {
  static const bool pays = [] {
    constexpr int64_t kSteps = 48 * 200;  // some microseconds
    const Isa isa = detect_isa();
    CHECK(isa >= Isa::kAvx512Bf16);
    int64_t f32_done = 0;
    const double f32 = least_seconds([&] {
      float value = 0.0f;
      f32_done = VLCACHE_SIMD(isa, fma_loop)(kSteps, &value);
    });
    const double dots = least_seconds([] { bf16_dot_loop(kSteps); });
    return 64.0 * kSteps / dots >= static_cast<double>(f32_done) / f32;
  }();
  return pays;
}

bool word_products_pay() {
  static const bool pay = [] {
    constexpr int64_t kSteps = 48 * 400;  // some microseconds
    constexpr Isa kIsa = Isa::kAvx2;
    CHECK(detect_isa() >= kIsa);
    const double multiply_adds = least_seconds([] {
      float value = 0.0f;
      VLCACHE_SIMD(kIsa, fma_loop)(kSteps, &value);
    });
    const double words = least_seconds([] {
      uint32_t value = 0;
      VLCACHE_SIMD(kIsa, word_loop)(kSteps, &value);
    });
    // Of 32 inputs and 8 outputs: 16 products of words and 4 operations of f32, or 32 multiply-adds.
    return 16 * words < (32 - 4) * multiply_adds;
  }();
  return pay;
}

Buffer probe_memory() {
  Buffer memory(kReadBytes);
  parallel_ranges(kReadBytes, 4096, [&](int64_t begin, int64_t end, int) {
    std::memset(memory.data() + begin, 1, static_cast<size_t>(end - begin));
  });
  return memory;
}

MachineLimits measure_limits(double seconds, const Buffer& memory) {
  CHECK(memory.bytes() == kReadBytes);
  const Isa isa = detect_isa();
  MachineLimits limits;
  std::atomic<uint32_t> sink{0};
  limits.f32_tflops = 1e-12 * median_rate(seconds / 4, [&] {
                        return on_all_threads([&] {
                          float value = 0.0f;
                          const int64_t done = VLCACHE_SIMD(isa, fma_loop)(kLoopSteps, &value);
                          sink += value != 0.0f ? 1u : 0u;
                          return static_cast<double>(done);
                        });
                      });
  limits.bf16_tflops = limits.f32_tflops;
  if (isa >= Isa::kAvx512Bf16) {
    const double dots = 1e-12 * median_rate(seconds / 4, [&] {
                          return on_all_threads([&] {
                            const bool amx = isa >= Isa::kAmxBf16;
                            sink += (amx ? amx_loop(kLoopSteps / 8) : bf16_dot_loop(kLoopSteps)) != 0.0f ? 1u : 0u;
                            return amx ? 2.0 * 16 * 16 * 32 * (kLoopSteps / 8) : 64.0 * kLoopSteps;
                          });
                        });
    limits.bf16_tflops = std::max(limits.bf16_tflops, dots);
  }
  if (has_byte_dots(isa)) {
    limits.int8_tops = 1e-12 * median_rate(seconds / 8, [&] {
                         return on_all_threads([&] {
                           uint32_t value = 0;
                           const int64_t done = VLCACHE_SIMD(isa, byte_dot_loop)(kLoopSteps, &value);
                           sink += value;
                           return static_cast<double>(done);
                         });
                       });
  }
  int64_t piece = 0;
  limits.read_gb_s = 1e-9 * median_rate(seconds / 2, [&] {
                       const std::byte* from = memory.data() + piece++ % (kReadBytes / kPieceBytes) * kPieceBytes;
                       parallel_ranges(kPieceBytes, 4096, [&](int64_t begin, int64_t end, int) {
                         sink += VLCACHE_SIMD(isa, read_loop)(from + begin, end - begin);
                       });
                       return static_cast<double>(kPieceBytes);
                     });
  return limits;
}

}  // namespace vlcache::cpu
#endif
