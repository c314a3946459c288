#include "base/numeric/kv_codec_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/dtype.h"
#include "base/numeric/kv_codec.h"

// One source for all instruction sets: vectors of the compiler, whose number of lanes is a parameter, inlined into a
// function per instruction set (the end of this file). They are passed by reference, since no convention covers them.
#define VLCACHE_INLINE [[gnu::always_inline]] inline

namespace vlcache {
namespace {

template <typename T, int kLanes>
struct VecOf {
  using Type __attribute__((vector_size(sizeof(T) * kLanes))) = T;
};
template <typename T, int kLanes>
using Vec = typename VecOf<T, kLanes>::Type;
template <int kLanes>
using F32 = Vec<float, kLanes>;
template <int kLanes>
using I32 = Vec<int32_t, kLanes>;
template <int kLanes>
using Lanes = std::make_integer_sequence<int, kLanes>;

// Codes are packed in steps of as many values; buffers have room for a whole last step.
constexpr int64_t kStep = 32;
constexpr int64_t kRoom = kMaxCodedHead + kStep;
constexpr int64_t whole_steps(int64_t n) { return (n + kStep - 1) / kStep * kStep; }

template <int kStride, typename V, int... i>
VLCACHE_INLINE void swap_lanes(const V& x, V& y, std::integer_sequence<int, i...>) {
  y = __builtin_shufflevector(x, x, (i ^ kStride)...);
}

template <int kStride, int kLanes, int... i>
VLCACHE_INLINE void set_signs(F32<kLanes>& signs, std::integer_sequence<int, i...>) {
  signs = F32<kLanes>{((i & kStride) != 0 ? -1.0f : 1.0f)...};
}

// (a, b) of lanes that are kStride apart becomes (a + b, a - b): a product with 1 or -1 is exact, so a fused
// multiply-add gives the same bits as the sum.
template <int kStride, int kLanes>
VLCACHE_INLINE void add_lanes(F32<kLanes>& x) {
  if constexpr (kStride < kLanes) {
    F32<kLanes> signs, other;
    set_signs<kStride, kLanes>(signs, Lanes<kLanes>());
    swap_lanes<kStride>(x, other, Lanes<kLanes>());
    x = other + x * signs;
  }
}

// Each byte of `from` as a word of v. A loop: GCC 12 turns it into one instruction, and __builtin_convertvector into
// many.
template <typename From, typename To, typename V>
VLCACHE_INLINE void widen(const std::byte* from, V& v) {
  constexpr size_t kWords = sizeof(V) / sizeof(To);
  To words[kWords];
  for (size_t i = 0; i < kWords; ++i) words[i] = static_cast<From>(from[i]);
  std::memcpy(&v, words, sizeof v);
}

// Sources and sinks of rotated values, kLanes of them at a time.
struct FromValues {
  const float* x;
  template <int kLanes>
  VLCACHE_INLINE void load(int64_t i, F32<kLanes>& v) const {
    std::memcpy(&v, x + i, sizeof v);
  }
};
struct FromBytes {
  const std::byte* codes;
  template <int kLanes>
  VLCACHE_INLINE void load(int64_t i, F32<kLanes>& v) const {
    I32<kLanes> words;
    widen<int8_t, int32_t>(codes + i, words);
    v = __builtin_convertvector(words, F32<kLanes>);
  }
};
struct FromNibbles {
  const std::byte* codes;
  template <int kLanes>
  VLCACHE_INLINE void load(int64_t i, F32<kLanes>& v) const {
    Vec<uint64_t, kLanes / 2> pairs;
    widen<uint8_t, uint64_t>(codes + i / 2, pairs);
    // Each half at the top of its word; the shift back extends its sign.
    v = __builtin_convertvector(reinterpret_cast<I32<kLanes>>(pairs << 28 | (pairs >> 4) << 60) >> 28, F32<kLanes>);
  }
};
struct ToValues {
  float* y;
  template <int kLanes>
  VLCACHE_INLINE void store(int64_t i, const F32<kLanes>& v) {
    std::memcpy(y + i, &v, sizeof v);
  }
};
struct ToScaled {
  float* y;
  float scale;
  template <int kLanes>
  VLCACHE_INLINE void store(int64_t i, const F32<kLanes>& v) {
    const F32<kLanes> scaled = v * scale;
    std::memcpy(y + i, &scaled, sizeof scaled);
  }
};
// Keeps the bits of the largest absolute value: they order as values do, infinities and NaN above all others.
template <int kLanes>
struct ToValuesAndMost {
  float* y;
  I32<kLanes> most;
  template <int kSame>
  VLCACHE_INLINE void store(int64_t i, const F32<kSame>& v) {
    std::memcpy(y + i, &v, sizeof v);
    const I32<kLanes> bits = reinterpret_cast<I32<kLanes>>(v) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
};

// Blocks of kVectors vectors, or several blocks of kBlock values a vector, in registers. n is rounded up to them.
template <int kLanes, int kVectors, int kBlock, typename From, typename To>
VLCACHE_INLINE void rotate_blocks(const From& from, int64_t n, To& to) {
  for (int64_t at = 0; at < n; at += kVectors * kLanes) {
    F32<kLanes> v[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) from.template load<kLanes>(at + i * kLanes, v[i]);
#pragma GCC unroll 16
    for (int stride = kVectors / 2; stride > 0; stride /= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) {
        if ((i & stride) != 0) continue;
        const F32<kLanes> a = v[i], b = v[i + stride];
        v[i] = a + b, v[i + stride] = a - b;
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (kBlock > 8) add_lanes<8, kLanes>(v[i]);
      if constexpr (kBlock > 4) add_lanes<4, kLanes>(v[i]);
      if constexpr (kBlock > 2) add_lanes<2, kLanes>(v[i]);
      if constexpr (kBlock > 1) add_lanes<1, kLanes>(v[i]);
      to.template store<kLanes>(at + i * kLanes, v[i]);
    }
  }
}

// The first stage of every block of n values: kLanes at a time.
template <int kLanes, typename From>
VLCACHE_INLINE void rotate_stage(const From& from, int64_t n, int64_t block, float* y) {
  F32<kLanes> a, b;
  ToValues to{y};
  for (int64_t at = 0; at < n; at += block) {
    for (int64_t i = at, j = at + block / 2; j < at + block; i += kLanes, j += kLanes) {
      from.template load<kLanes>(i, a), from.template load<kLanes>(j, b);
      to.store<kLanes>(i, a + b), to.store<kLanes>(j, a - b);
    }
  }
}

// H of +-1 in Sylvester's order. Its stages pair values that are block / 2, block / 4, ... 1 apart: sums are rounded,
// so this order is part of the codec. Reads and writes whole vectors, to which n is rounded up.
template <int kLanes, typename From, typename To>
VLCACHE_INLINE void rotate(const From& from, int64_t n, To& to) {
  constexpr int kMost = kLanes == 16 ? 16 : 8;  // vectors that registers hold
  int64_t block = rotation_block(n);
  if (block == kLanes) return rotate_blocks<kLanes, 1, kLanes>(from, n, to);
  if (block == 2 * kLanes) return rotate_blocks<kLanes, 2, kLanes>(from, n, to);
  if (block == 4 * kLanes) return rotate_blocks<kLanes, 4, kLanes>(from, n, to);
  if (block == 8 * kLanes) return rotate_blocks<kLanes, 8, kLanes>(from, n, to);
  if (block == kMost * kLanes) return rotate_blocks<kLanes, kMost, kLanes>(from, n, to);
  if (block == 1) return rotate_blocks<kLanes, 1, 1>(from, n, to);
  if (block == 2) return rotate_blocks<kLanes, 1, 2>(from, n, to);
  if (block == 4) return rotate_blocks<kLanes, 1, 4>(from, n, to);
  if (block == 8) return rotate_blocks<kLanes, 1, 8>(from, n, to);
  // Larger than the registers: the first stages in memory.
  float y[kRoom];
  rotate_stage<kLanes>(from, n, block, y);
  for (block /= 2; block > kMost * kLanes; block /= 2) rotate_stage<kLanes>(FromValues{y}, n, block, y);
  rotate_blocks<kLanes, kMost, kLanes>(FromValues{y}, n, to);
}

template <int kStride, int kLanes>
VLCACHE_INLINE void take_larger(I32<kLanes>& x) {
  if constexpr (kStride < kLanes) {
    I32<kLanes> other;
    swap_lanes<kStride>(x, other, Lanes<kLanes>());
    x = other > x ? other : x;
  }
}
template <int kLanes>
VLCACHE_INLINE int32_t largest_lane(I32<kLanes>& x) {
  take_larger<8, kLanes>(x), take_larger<4, kLanes>(x), take_larger<2, kLanes>(x), take_larger<1, kLanes>(x);
  return x[0];
}

// The low bits of a value plus this are the whole number that it is rounded to, halves to even.
constexpr float kToWhole = 12582912.0f;  // 1.5 * 2^23

// y / scale. kFused: as a product with the reciprocal, corrected by the remainder, which is the same quotient
// (Markstein) where the CPU has fused multiply-adds and nothing underflows.
template <bool kFused>
struct Divisor {
  float scale, reciprocal = 1.0f / scale;
  VLCACHE_INLINE float quotient(float y) const {
    if constexpr (!kFused) return y / scale;
    const float near = y * reciprocal;
    return __builtin_fmaf(__builtin_fmaf(-near, scale, y), reciprocal, near);
  }
};

// Codes of a byte to two a byte: n is rounded up to eight.
VLCACHE_INLINE void to_nibbles(const std::byte* codes, int64_t n, std::byte* pairs) {
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, codes + i, sizeof eight);
    eight = (eight & 0x000f000f000f000f) | (eight >> 4 & 0x00f000f000f000f0);
    eight = (eight | eight >> 8) & 0x0000ffff0000ffff;
    const auto four = static_cast<uint32_t>(eight | eight >> 16);
    std::memcpy(pairs + i / 2, &four, sizeof four);
  }
}

// The low byte of each word of v, the reverse of widen().
template <typename From, typename V>
VLCACHE_INLINE void narrow(const V& v, std::byte* to) {
  constexpr size_t kWords = sizeof(V) / sizeof(From);
  From words[kWords];
  std::memcpy(words, &v, sizeof words);
  for (size_t i = 0; i < kWords; ++i) to[i] = static_cast<std::byte>(words[i]);
}

// y [n, rounded up to whole steps] to as many codes. Compilers pack a vector of sixteen words at once, and several
// smaller ones in a loop.
template <int kLanes, bool kFused>
VLCACHE_INLINE void to_codes(CodeBits bits, const float* y, int64_t n, const Divisor<kFused>& by, std::byte* codes) {
  if constexpr (kLanes == 16) {
    for (int64_t i = 0; i < n; i += kLanes) {
      F32<kLanes> v;
      std::memcpy(&v, y + i, sizeof v);
      for (int j = 0; j < kLanes; ++j) v[j] = by.quotient(v[j]);
      v += kToWhole;
      if (bits == CodeBits::k8) {
        narrow<uint32_t>(v, codes + i);
      } else {
        const auto pairs = reinterpret_cast<Vec<uint64_t, kLanes / 2>>(v);
        narrow<uint64_t>((pairs & 15) | (pairs >> 28 & 0xf0), codes + i / 2);
      }
    }
    return;
  }
  std::byte buffer[kRoom];
  std::byte* bytes = bits == CodeBits::k8 ? codes : buffer;
  for (int64_t i = 0; i < n; i += kStep) {
    for (int64_t j = i; j < i + kStep; ++j) {
      bytes[j] = static_cast<std::byte>(std::bit_cast<int32_t>(by.quotient(y[j]) + kToWhole));
    }
  }
  if (bits == CodeBits::k4) to_nibbles(bytes, n, codes);
}

constexpr int64_t code_bytes(CodeBits bits, int64_t n) { return bits == CodeBits::k8 ? n : (n + 1) / 2; }
constexpr float top_code(CodeBits bits) { return bits == CodeBits::k8 ? 127 : 7; }

// The least bf16 that is not below x >= 0: with it no code exceeds the largest.
uint16_t rounded_up(float x) { return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0xffffu) >> 16); }

// x [n], or a copy with zeros after it where n is not a multiple of the lanes.
template <int kLanes>
VLCACHE_INLINE const float* whole_vectors(const float* x, int64_t n, float* padded) {
  if (n % kLanes == 0) return x;
  std::memcpy(padded, x, static_cast<size_t>(n) * sizeof(float));
  std::fill(padded + n, padded + whole_steps(n), 0.0f);
  return padded;
}

template <int kLanes, bool kFused>
VLCACHE_INLINE void encode(CodeBits bits, const float* x, int64_t n, std::byte* group) {
  alignas(64) float y[kRoom];
  ToValuesAndMost<kLanes> to{y, {}};
  float padded[kRoom];
  rotate<kLanes>(FromValues{whole_vectors<kLanes>(x, n, padded)}, n, to);
  const int32_t most = largest_lane<kLanes>(to.most);
  std::byte* codes = group + sizeof(bf16);
  if (most >= 0x7f800000) {  // a value that is not finite
    const bf16 nan = to_bf16(NAN);
    std::memcpy(group, &nan, sizeof nan);
    std::memset(codes, 0, static_cast<size_t>(code_bytes(bits, n)));
    return;
  }
  // A code is worth `scale` in the rotated group, and 1 / block of that in every value.
  const bf16 stored{rounded_up(std::bit_cast<float>(most) / top_code(bits))};
  std::memcpy(group, &stored, sizeof stored);
  const float scale = to_float(stored) > 0 ? to_float(stored) : 1;  // at 0 all values are next to 0: their codes are 0
  std::fill(y + n, y + whole_steps(n), 0.0f);
  std::byte buffer[kRoom];
  std::byte* packed = n % kStep == 0 ? codes : buffer;
  if (kFused && scale > 0x1p-100f && scale < 0x1p100f) {
    to_codes<kLanes>(bits, y, n, Divisor<kFused>{scale}, packed);
  } else {
    to_codes<kLanes>(bits, y, n, Divisor<false>{scale}, packed);
  }
  if (packed != codes) std::memcpy(codes, packed, static_cast<size_t>(code_bytes(bits, n)));
}

// Two codes a byte to codes of a byte: n is rounded up to eight.
VLCACHE_INLINE void from_nibbles(const std::byte* pairs, int64_t n, std::byte* codes) {
  for (int64_t i = 0; i < n; i += 8) {
    uint32_t four;
    std::memcpy(&four, pairs + i / 2, sizeof four);
    uint64_t eight = (four | static_cast<uint64_t>(four) << 16) & 0x0000ffff0000ffff;
    eight = (eight | eight << 8) & 0x00ff00ff00ff00ff;
    eight = (eight | eight << 4) & 0x0f0f0f0f0f0f0f0f;
    eight = ((eight ^ 0x8888888888888888) - 0x0808080808080808) ^ 0x8080808080808080;  // extends each sign
    std::memcpy(codes + i, &eight, sizeof eight);
  }
}

template <int kLanes, typename To>
VLCACHE_INLINE void decode_codes(CodeBits bits, const std::byte* codes, int64_t n, To& to) {
  if constexpr (kLanes > 4) {
    if (bits == CodeBits::k8) return rotate<kLanes>(FromBytes{codes}, n, to);
    return rotate<kLanes>(FromNibbles{codes}, n, to);
  }
  std::byte bytes[kRoom];
  if (bits == CodeBits::k4) {
    std::byte pairs[kRoom / 2];  // with room for a whole last step
    std::memcpy(pairs, codes, static_cast<size_t>(code_bytes(bits, n)));
    from_nibbles(pairs, n, bytes);
    codes = bytes;
  }
  float y[kRoom];
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<int8_t>(codes[i]));
  rotate<kLanes>(FromValues{y}, n, to);
}

template <int kLanes>
VLCACHE_INLINE void decode(CodeBits bits, const std::byte* group, int64_t n, float* x) {
  bf16 stored;
  std::memcpy(&stored, group, sizeof stored);
  const std::byte* codes = group + sizeof stored;
  const float scale = to_float(stored) / static_cast<float>(rotation_block(n));
  std::byte padded[kRoom];
  float y[kRoom];
  const bool whole = n % kLanes == 0;
  if (!whole) {
    std::memcpy(padded, codes, static_cast<size_t>(code_bytes(bits, n)));
    std::fill(padded + code_bytes(bits, n), padded + whole_steps(n), std::byte{});
    codes = padded;
  }
  ToScaled to{whole ? x : y, scale};
  decode_codes<kLanes>(bits, codes, n, to);
  if (!whole) std::memcpy(x, y, static_cast<size_t>(n) * sizeof(float));
}

template <int kLanes>
VLCACHE_INLINE void rotate_row(const float* x, int64_t n, float* y) {
  float padded[kRoom];
  const float* from = whole_vectors<kLanes>(x, n, padded);
  ToValues to{from == x ? y : padded};
  rotate<kLanes>(FromValues{from}, n, to);
  if (from != x) std::memcpy(y, padded, static_cast<size_t>(n) * sizeof(float));
}

VLCACHE_INLINE void widen_row(const bf16* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i].bits) << 16);
}

VLCACHE_INLINE void round_row(const float* x, int64_t n, bf16* y) {
  for (int64_t i = 0; i < n; ++i) {  // to_bf16 without a branch
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t nan = bits >> 16 | 0x40u, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    y[i].bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

// One instruction set: its functions, into which all of the above is inlined, and their table.
#define VLCACHE_CODEC_KERNELS(NAME, LANES, FUSED, TARGET)                                        \
  TARGET void widen_##NAME(const bf16* x, int64_t n, float* y) { widen_row(x, n, y); }           \
  TARGET void round_##NAME(const float* x, int64_t n, bf16* y) { round_row(x, n, y); }           \
  TARGET void rotate_##NAME(const float* x, int64_t n, float* y) { rotate_row<LANES>(x, n, y); } \
  TARGET void encode_##NAME(CodeBits bits, const float* x, int64_t n, std::byte* group) {        \
    encode<LANES, FUSED>(bits, x, n, group);                                                     \
  }                                                                                              \
  TARGET void decode_##NAME(CodeBits bits, const std::byte* group, int64_t n, float* x) {        \
    decode<LANES>(bits, group, n, x);                                                            \
  }                                                                                              \
  constexpr CodecKernels k_##NAME { #NAME, widen_##NAME, round_##NAME, rotate_##NAME, encode_##NAME, decode_##NAME }

VLCACHE_CODEC_KERNELS(plain, 4, false, );
#ifdef __x86_64__
VLCACHE_CODEC_KERNELS(avx2, 8, true, [[gnu::target("avx2,fma")]]);
VLCACHE_CODEC_KERNELS(avx512, 16, true, [[gnu::target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]]);

constexpr CodecKernels kKernels[] = {k_plain, k_avx2, k_avx512};

size_t n_supported() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? 3 : 2;
}
#else
constexpr CodecKernels kKernels[] = {k_plain};

size_t n_supported() { return 1; }
#endif

}  // namespace

std::span<const CodecKernels> codec_kernels() {
  static const size_t n = n_supported();
  return {kKernels, n};
}

}  // namespace vlcache
