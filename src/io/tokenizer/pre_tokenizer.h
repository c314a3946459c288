// PreTokenizer: the "pre_tokenizer" of tokenizer.json, which cuts normalized text into the words that the model sees
// one by one.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "io/tokenizer/pieces.h"

namespace vlcache {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts every piece that is not a token. Const, thread-safe.
  virtual void apply(PieceList& list) const = 0;
  // Whether all of a text is in its pieces, white space too.
  virtual bool keeps_text() const { return true; }
  // Whether the pieces are spelled in letters that stand for bytes.
  virtual bool spells_bytes() const { return false; }
};

// Null for JSON null. Throws Error(kUnsupported) naming a type that is not known, Error(kInput) for wrong fields.
std::unique_ptr<PreTokenizer> parse_pre_tokenizer(const Json* json, const std::string& where);

}  // namespace vlcache
