// A codec of KV pages in a file of evidence.
#pragma once

#include "base/json.h"
#include "base/kv_codec_name.h"

namespace vlcache {

// Throws Error(kInput) naming the field and all codecs if its text names none.
inline KvCodec codec_field(const JsonObject& file, std::string_view key) {
  if (const std::optional<KvCodec> codec = kv_codec_named(file.string(key))) return *codec;
  std::string names;
  for (int i = 0; i < kKvCodecs; ++i) {
    names += (i > 0 ? ", " : "") + std::string(kv_codec_name(static_cast<KvCodec>(i)));
  }
  file.fail(key, "one of " + names);
}

}  // namespace vlcache
