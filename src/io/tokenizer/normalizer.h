// Normalizer: the "normalizer" of tokenizer.json, which rewrites text before it is cut.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "io/tokenizer/pieces.h"

namespace vlcache {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites the piece: reads piece.text, leaves it a view of `text` (which must outlive it). Const, thread-safe.
  virtual void apply(Piece& piece, std::string& text) const = 0;
};

// Null for JSON null. Throws Error(kUnsupported) naming a type that is not known, Error(kInput) for wrong fields.
std::unique_ptr<Normalizer> parse_normalizer(const Json* json, const std::string& where);

// Shared with the other parts of tokenizer.json: {"String": s} or {"Regex": r}.
Regex parse_pattern(const JsonObject& object, std::string_view key);

// Bytes as GPT-2 writes them: printable characters stand for themselves, the others for U+0100 and on.
void append_byte_level(std::string& out, unsigned char byte);
// The byte that a character stands for, -1 if none.
int byte_of_character(char32_t c);

}  // namespace vlcache
