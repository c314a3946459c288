// Defines element types and their scalar conversions.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace vlcache {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kI64, kU8, kI8 };

int64_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // "f32", "bf16", ...

struct bf16 {
  uint16_t bits;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(float x) { return x; }

// Round to nearest even; NaN stays NaN (quiet).
inline bf16 to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE half to float, subnormals included.
float f16_to_float(uint16_t half);
// Rounded to nearest even, subnormals included; beyond 65504: infinite.
uint16_t float_to_f16(float x);

template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

}  // namespace vlcache
