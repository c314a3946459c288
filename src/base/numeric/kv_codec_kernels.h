// The inner loops of kv_codec.cc for each instruction set. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace vlcache {

inline constexpr int64_t kMaxRotation = 256;    // values that are rotated together
inline constexpr int64_t kMaxCodedHead = 1024;  // values of a head: kMaxHeadDim of ops/backend.h

enum class CodeBits : uint8_t { k8, k4 };

struct CodecKernels {
  std::string_view name;  // "plain", "avx2", "avx512"
  void (*widen)(const bf16* x, int64_t n, float* y);
  void (*round)(const float* x, int64_t n, bf16* y);  // as to_bf16
  // y = H x, in blocks of rotation_block(n); y may be x.
  void (*rotate)(const float* x, int64_t n, float* y);
  // One group of n values under one scale (kv_codec.h), n <= kMaxCodedHead: its scale in bf16, then its codes.
  void (*encode)(CodeBits bits, const float* x, int64_t n, std::byte* group);
  void (*decode)(CodeBits bits, const std::byte* group, int64_t n, float* x);
};

// Of every instruction set that this CPU has, the fastest last.
std::span<const CodecKernels> codec_kernels();

}  // namespace vlcache
