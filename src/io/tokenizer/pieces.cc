#include "io/tokenizer/pieces.h"

#include <algorithm>

namespace vlcache {

std::string_view PieceList::own(std::string text) { return texts_.emplace_back(std::move(text)); }

Piece slice_piece(const Piece& piece, size_t start, size_t end) {
  Piece part{.text = piece.text.substr(start, end - start)};
  part.at_start = piece.at_start && start < piece.n_start_bytes;
  part.n_start_bytes = part.at_start ? std::min(piece.n_start_bytes - start, end - start) : 0;
  return part;
}

void split_piece(const Piece& piece, const std::vector<TextMatch>& matches, SplitBehavior behavior,
                 std::vector<Piece>& out) {
  const auto emit = [&](size_t start, size_t end) {
    if (start < end) out.push_back(slice_piece(piece, start, end));
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const TextMatch& m : matches) {
        if (!m.is_match) emit(m.start, m.end);
      }
      return;
    case SplitBehavior::kIsolated:
      for (const TextMatch& m : matches) emit(m.start, m.end);
      return;
    default:
      break;
  }
  // The others join neighbours. `previous` starts as "no match" in the reference, which matters for Contiguous only.
  const size_t n = matches.size();
  if (behavior == SplitBehavior::kMergedWithNext) {
    std::vector<TextMatch> joined;
    bool previous = false;
    for (size_t k = n; k-- > 0;) {
      const TextMatch& m = matches[k];
      if (m.is_match && !previous && !joined.empty()) {
        joined.back().start = m.start;
      } else {
        joined.push_back(m);
      }
      previous = m.is_match;
    }
    for (size_t k = joined.size(); k-- > 0;) emit(joined[k].start, joined[k].end);
    return;
  }
  bool previous = false;
  size_t start = 0, end = 0;
  for (size_t k = 0; k < n; ++k) {
    const TextMatch& m = matches[k];
    const bool join = behavior == SplitBehavior::kContiguous ? m.is_match == previous : m.is_match && !previous;
    if (join && k > 0) {
      end = m.end;
    } else {
      emit(start, end);
      start = m.start;
      end = m.end;
    }
    previous = m.is_match;
  }
  emit(start, end);
}

Piece replace_matches(const Piece& piece, const std::vector<TextMatch>& matches, std::string_view content,
                      std::string& text) {
  text.clear();
  size_t n_start = 0;
  bool at_start = true;  // everything so far stems from the first character
  for (const TextMatch& m : matches) {
    // Inserted characters are aligned with the byte before the match, at the beginning with the beginning.
    const bool from_start =
        m.is_match ? m.start < 1 || m.start - 1 < piece.n_start_bytes : m.end <= piece.n_start_bytes;
    if (!m.is_match && at_start && !from_start && piece.n_start_bytes > m.start)
      n_start += piece.n_start_bytes - m.start;
    at_start = at_start && from_start;
    const std::string_view part = m.is_match ? content : piece.text.substr(m.start, m.end - m.start);
    if (at_start) n_start += part.size();
    text += part;
  }
  Piece replaced = piece;
  replaced.text = text;
  replaced.n_start_bytes = n_start;
  return replaced;
}

}  // namespace vlcache
