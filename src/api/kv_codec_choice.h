// The codec of KV pages by the name that a user gives: --kv-codec, --kv-dtype, and the names that llama.cpp uses.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/kv_codec_name.h"

namespace vlcache {

struct KvCodecChoice {
  std::optional<KvCodec> codec;  // none: auto
  std::string note;              // how another program's name was read; "": it is ours
};

// auto, bf16, f32, int8, k8v4 or int4; q8_0 as int8, q4_0 as int4, the pair q8_0,q4_0 (K, V) as k8v4. Throws
// Error(kInput) for other names: the allowed names, and the nearest of them for names of other programs.
KvCodecChoice parse_kv_codec(std::string_view name);

// The codec that --kv-codec and its older form --kv-dtype (auto, f32, bf16) give together. Throws Error(kInput) if they
// contradict each other.
std::optional<KvCodec> joined_kv_codec(std::string_view kv_codec, std::string_view kv_dtype);

}  // namespace vlcache
