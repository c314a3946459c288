#include "api/kv_codec_choice.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::string_view kAllowed = "auto, bf16, f32, int8, k8v4, int4";

// A name of llama.cpp's -ctk and -ctv, or of another engine, and the nearest of ours.
struct OtherName {
  std::string_view name;
  KvCodec ours;
  bool same;  // as many bits: it is read as ours
};
constexpr std::array<OtherName, 11> kOtherNames{{{"q8_0", KvCodec::kInt8, true},
                                                 {"u8", KvCodec::kInt8, true},
                                                 {"q4_0", KvCodec::kInt4, true},
                                                 {"u4", KvCodec::kInt4, true},
                                                 {"f16", KvCodec::kBF16, false},
                                                 {"fp16", KvCodec::kBF16, false},
                                                 {"float16", KvCodec::kBF16, false},
                                                 {"fp8", KvCodec::kInt8, false},
                                                 {"q5_0", KvCodec::kInt8, false},
                                                 {"q5_1", KvCodec::kInt8, false},
                                                 {"iq4_nl", KvCodec::kInt4, false}}};

std::optional<OtherName> known(std::string_view name) {
  if (const std::optional<KvCodec> ours = kv_codec_named(name)) return OtherName{name, *ours, true};
  const auto other = std::ranges::find(kOtherNames, name, &OtherName::name);
  return other != kOtherNames.end() ? std::optional(*other) : std::nullopt;
}

// llama.cpp's -ctk and -ctv as one value: the codec of both, k8v4 for eight and four bits. Of other pairs the nearest
// has no fewer bits for K and for V.
std::optional<OtherName> known_pair(std::string_view name) {
  const size_t comma = name.find(',');
  if (comma == std::string_view::npos) return std::nullopt;
  const std::optional<OtherName> k = known(name.substr(0, comma)), v = known(name.substr(comma + 1));
  if (!k || !v || k->ours == KvCodec::kK8V4 || v->ours == KvCodec::kK8V4) return std::nullopt;
  const bool same = k->same && v->same;
  if (k->ours == v->ours) return OtherName{name, k->ours, same};
  if (k->ours == KvCodec::kInt8 && v->ours == KvCodec::kInt4) return OtherName{name, KvCodec::kK8V4, same};
  if (!is_coded(k->ours) || !is_coded(v->ours)) return OtherName{name, std::min(k->ours, v->ours), false};
  return OtherName{name, KvCodec::kInt8, false};
}

}  // namespace

KvCodecChoice parse_kv_codec(std::string_view name) {
  if (name == "auto") return {};
  std::optional<OtherName> found = known(name);
  if (!found) found = known_pair(name);
  const std::string quoted = "'" + std::string(name) + "'";
  if (!found || !found->same) {
    const std::string nearest = found ? "; the nearest is " + std::string(kv_codec_name(found->ours)) : "";
    throw Error(ErrorCode::kInput, "unknown KV codec " + quoted + nearest + "; allowed are " + std::string(kAllowed));
  }
  const std::string_view ours = kv_codec_name(found->ours);
  return {.codec = found->ours, .note = name == ours ? "" : "KV codec " + quoted + " is read as " + std::string(ours)};
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
