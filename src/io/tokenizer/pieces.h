// Defines the pieces that a text is cut into by the tokenizer, some of which are tokens already.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/encode_limits.h"
#include "io/tokenizer/regex.h"

namespace vlcache {

// Where a piece began in the original text matters to one rule only (Metaspace with prepend_scheme "first"), so of the
// reference's alignments only the part needed by that rule is kept.
struct Piece {
  std::string_view text;
  int32_t token = -1;        // an added token; such a piece is final
  bool at_start = false;     // it was cut from the very beginning of the original text
  size_t n_start_bytes = 0;  // that many leading bytes stem from the original's first character
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PieceList {
 public:
  std::vector<Piece> pieces;
  EncodeBudget* budget = nullptr;  // null: none
  bool are_tokens = false;         // every piece becomes a token at least

  // To be called with the number of pieces so far; throws as EncodeBudget does.
  void check(size_t n_pieces) const {
    if (budget == nullptr) return;
    if (are_tokens) budget->check(static_cast<int64_t>(n_pieces));
    budget->tick();
  }
  // Keeps a new text alive as long as the list.
  std::string_view own(std::string text);

 private:
  std::deque<std::string> texts_;
};

// The part [start, end) of a piece, not empty, as a piece of its own.
Piece slice_piece(const Piece& piece, size_t start, size_t end);

// Appends the parts of `piece` to `out`, treating matches by `behavior`; empty parts are left out.
void split_piece(const Piece& piece, const std::vector<TextMatch>& matches, SplitBehavior behavior,
                 std::vector<Piece>& out);

// Replaces matches by `content`.
Piece replace_matches(const Piece& piece, const std::vector<TextMatch>& matches, std::string_view content,
                      std::string& text);

}  // namespace vlcache
