// KvCodec names how K and V are stored, in pages and in records; base/numeric/kv_codec.h encodes and decodes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace vlcache {

enum class KvCodec : uint8_t { kF32, kBF16, kInt8, kInt4, kK8V4 };
inline constexpr int kKvCodecs = 5;

// Whether rows are whole numbers and their scales, not values.
constexpr bool is_coded(KvCodec codec) { return codec >= KvCodec::kInt8; }

// The codecs of a page's two halves: k8v4 is a pair, every other codec is that of both.
constexpr KvCodec k_codec(KvCodec codec) { return codec == KvCodec::kK8V4 ? KvCodec::kInt8 : codec; }
constexpr KvCodec v_codec(KvCodec codec) { return codec == KvCodec::kK8V4 ? KvCodec::kInt4 : codec; }

constexpr std::string_view kv_codec_name(KvCodec codec) {
  constexpr std::array<std::string_view, kKvCodecs> kNames{"f32", "bf16", "int8", "int4", "k8v4"};
  return kNames[static_cast<size_t>(codec)];
}

// None: no codec has this name.
constexpr std::optional<KvCodec> kv_codec_named(std::string_view name) {
  for (int i = 0; i < kKvCodecs; ++i) {
    if (name == kv_codec_name(static_cast<KvCodec>(i))) return static_cast<KvCodec>(i);
  }
  return std::nullopt;
}

}  // namespace vlcache
