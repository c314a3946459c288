// TextMarks keeps the texts of a conversation from being read as structure: it puts a mark, a private-use character
// that occurs nowhere else, inside every piece of them that a tokenizer or a family would read as a token of its own
// ("<image>", "<|im_end|>"). The template renders the texts with their marks, so what it wrote itself is the only
// structure left; Tokenizer::encode_marked takes the marks out again.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat_template.h"

namespace vlcache {

class TextMarks {
 public:
  using Reads = std::function<bool(std::string_view marked, char32_t mark)>;
  TextMarks() = default;
  // `pieces`: the texts of structure. `reads`: whether the tokenizer reads structure in a marked text all the same, for
  // one that changes texts before it searches them; empty: it does not change them.
  TextMarks(std::vector<std::string> pieces, Reads reads);

  // A mark for a conversation: a character that none of its texts contains, in its own form or escaped.
  char32_t choose(std::initializer_list<const OrderedJson*> texts) const;
  // Marks all strings of `json`, and pieces within its keys; values of `role` and `type` stay as they are. Returns
  // whether there are any marks.
  bool apply(OrderedJson& json, char32_t mark) const;
  // `edges`: also where the text begins or ends like a part of a piece.
  std::string marked(std::string_view text, char32_t mark, bool edges = true) const;

 private:
  bool starts_piece(std::string_view text, size_t at, size_t& length) const;
  bool ends_in_piece(std::string_view text) const;
  bool begins_in_piece(std::string_view text) const;

  std::vector<std::string> pieces_;         // sorted
  std::vector<std::string> heads_, tails_;  // proper beginnings and ends of pieces, sorted
  Reads reads_;
};

// Replaces marks that a template has escaped (tojson, repr) by the character itself.
std::string with_plain_marks(std::string rendered, char32_t mark);

}  // namespace vlcache
