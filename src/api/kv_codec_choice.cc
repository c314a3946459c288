#include "api/kv_codec_choice.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::string_view kAllowed = "auto, bf16, f32, int8";

// A name of llama.cpp's -ctk and -ctv, or of another engine, and the nearest of ours.
struct OtherName {
  std::string_view name;
  std::string_view ours;
  bool same;  // as many bits: it is read as ours
};
constexpr std::array<OtherName, 11> kOtherNames{{{"q8_0", "int8", true},
                                                 {"q8_0,q8_0", "int8", true},
                                                 {"u8", "int8", true},
                                                 {"f16", "bf16", false},
                                                 {"fp16", "bf16", false},
                                                 {"float16", "bf16", false},
                                                 {"fp8", "int8", false},
                                                 {"q5_0", "int8", false},
                                                 {"q5_1", "int8", false},
                                                 {"q4_0", "int8", false},
                                                 {"iq4_nl", "int8", false}}};

bool names_codec(std::string_view name) {
  const bool ours = name == "bf16" || name == "f32" || name == "int8";
  return ours || std::ranges::find(kOtherNames, name, &OtherName::name) != kOtherNames.end();
}

// llama.cpp's -ctk and -ctv as one value.
bool is_pair(std::string_view name) {
  const size_t comma = name.find(',');
  return comma != std::string_view::npos && names_codec(name.substr(0, comma)) && names_codec(name.substr(comma + 1));
}

}  // namespace

KvCodecChoice parse_kv_codec(std::string_view name) {
  if (name == "auto") return {};
  for (const KvCodec codec : {KvCodec::kBF16, KvCodec::kF32, KvCodec::kInt8}) {
    if (name == kv_codec_name(codec)) return {.codec = codec, .note = {}};
  }
  const std::string quoted = "'" + std::string(name) + "'";
  const auto other = std::ranges::find(kOtherNames, name, &OtherName::name);
  if (other != kOtherNames.end() && other->same) {
    return {.codec = parse_kv_codec(other->ours).codec,
            .note = "KV codec " + quoted + " is read as " + std::string(other->ours)};
  }
  std::string nearest;
  if (other != kOtherNames.end()) {
    nearest = "; the nearest is " + std::string(other->ours);
  } else if (is_pair(name)) {
    nearest = "; K and V have one codec, the nearest is int8";
  }
  throw Error(ErrorCode::kInput, "unknown KV codec " + quoted + nearest + "; allowed are " + std::string(kAllowed));
}

std::optional<KvCodec> joined_kv_codec(std::string_view kv_codec, std::string_view kv_dtype) {
  const std::optional<KvCodec> codec = parse_kv_codec(kv_codec).codec, dtype = parse_kv_codec(kv_dtype).codec;
  if (codec && dtype && *codec != *dtype) {
    throw Error(ErrorCode::kInput, "--kv-codec " + std::string(kv_codec) + " contradicts --kv-dtype " +
                                       std::string(kv_dtype) + ", an older name of the same flag; leave out one");
  }
  return codec ? codec : dtype;
}

}  // namespace vlcache
