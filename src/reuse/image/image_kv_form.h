// ImageKvForm: the form in which an image's KV is kept, in memory and in tiers: the codec of its rows, and the share of
// its tokens. One per engine; KV kept in another form is a miss.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/numeric/kv_codec.h"
#include "cache/kv_shape.h"

namespace vlcache {

struct ImageKvForm {
  enum class Codec : uint8_t { kExact, kInt8, kInt4 };
  Codec codec = Codec::kExact;  // kExact: rows as in the KV cache, bf16 or f32
  double share = 1;             // of an image's tokens, the same number in every layer
  std::string scorer;           // chooses them, without knowing a question; empty: all are kept

  bool keeps_all() const { return scorer.empty(); }
  // Whether scores need the model to repeat the image, in a prompt of its own (RepeatedImage).
  bool wants_repetition() const { return scorer == "kvzip"; }
  bool exact() const { return codec == Codec::kExact && keeps_all(); }
  KvCodec kv_codec(const KvShape& shape) const;
  // Number of tokens kept in every layer for an image of n_tokens: at least one.
  int32_t n_kept(int32_t n_tokens) const;
  // The same codec with all tokens.
  ImageKvForm complete() const { return {.codec = codec}; }
  // "exact", "int8", "int8, 0.2:key_diff".
  std::string name() const;
};

// Of an image, [n_layers][n_kept] ascending; empty for layers without KV of their own.
using KeptTokens = std::vector<std::vector<int32_t>>;

// "exact", "int8", "int4". Throws Error(kInput) that lists them.
ImageKvForm::Codec parse_image_codec(std::string_view text);
// Parses "SHARE:SCORER", such as "0.2:key_diff". Throws Error(kInput) that states what is expected.
void parse_image_keep(std::string_view text, ImageKvForm& form);

}  // namespace vlcache
