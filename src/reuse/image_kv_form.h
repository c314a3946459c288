// In which form an image's KV is kept, in memory and beyond: how its rows are coded, and whether all of its tokens are
// there. One for an engine; what is kept in another form is not found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/row_codec.h"
#include "cache/kv_shape.h"

namespace vlcache {

struct ImageKvForm {
  enum class Codec : uint8_t { kExact, kInt8, kInt4 };
  Codec codec = Codec::kExact;  // kExact: as the KV cache has the rows, bf16 or f32
  double share = 1;             // of an image's tokens, those that are kept in every layer
  std::string scorer;           // who chooses them, without knowing a question; empty: all are kept

  bool keeps_all() const { return scorer.empty(); }
  // Whether that is seen only while the model repeats the image, in a prompt of its own (RepeatedImage).
  bool wants_repetition() const { return scorer == "kvzip"; }
  bool exact() const { return codec == Codec::kExact && keeps_all(); }
  RowCodec row_codec(const KvShape& shape) const;
  // Of an image of so many tokens, those that are kept in every layer: at least one.
  int32_t n_kept(int32_t n_tokens) const;
  // The same with all tokens.
  ImageKvForm complete() const { return {.codec = codec}; }
  // "exact", "int8", "int8, 0.2:key_diff".
  std::string name() const;
};

// Of an image, [n_layers][n_kept] ascending; of layers without KV of their own nothing.
using KeptTokens = std::vector<std::vector<int32_t>>;

// "exact", "int8", "int4". Throws Error(kInput) that lists them.
ImageKvForm::Codec parse_image_codec(std::string_view text);
// Takes in "SHARE:SCORER", such as "0.2:key_diff". Throws Error(kInput) that says what works.
void parse_image_keep(std::string_view text, ImageKvForm& form);

}  // namespace vlcache
