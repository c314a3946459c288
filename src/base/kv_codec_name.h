// KvCodec names how K and V are stored, in pages and in records; base/numeric/kv_codec.h encodes and decodes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace vlcache {

enum class KvCodec : uint8_t { kF32, kBF16, kInt8, kInt4 };
inline constexpr int kKvCodecs = 4;

// Whether rows are whole numbers and their scales, not values.
constexpr bool is_coded(KvCodec codec) { return codec >= KvCodec::kInt8; }

constexpr std::string_view kv_codec_name(KvCodec codec) {
  constexpr std::array<std::string_view, kKvCodecs> kNames{"f32", "bf16", "int8", "int4"};
  return kNames[static_cast<size_t>(codec)];
}

}  // namespace vlcache
