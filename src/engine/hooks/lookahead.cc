#include "engine/hooks/lookahead.h"

#include <algorithm>

namespace vlcache {
namespace {

// Smaller pieces would read the whole cache for next to nothing.
constexpr int32_t kSmallestPiece = 64;

// 0: the context has no room.
int32_t piece_tokens(const Replay& replay, int32_t n_prompt, const ReplayText& text) {
  if (text.max_positions == 0) return replay.piece;
  const size_t n_instruction =
      std::max(text.first.size(), text.later.size() + size_t{kReplayOverlap}) + text.suffix.size();
  const int32_t room = text.max_positions - n_prompt - static_cast<int32_t>(n_instruction);
  const int32_t least = std::min({kSmallestPiece, replay.piece, n_prompt - replay.n_skipped});
  return room < least ? 0 : std::min(replay.piece, room);
}

}  // namespace

std::vector<Lookahead> list_lookaheads(std::span<Capture> captures, int32_t n_prompt, const ReplayText& text) {
  std::vector<Lookahead> all;
  int32_t n_draft = 0;
  std::vector<Replay> replays;
  for (Capture& capture : captures) {
    n_draft = std::max(n_draft, capture.request.ahead);
    const Replay& replay = capture.request.replay;
    if (replay.piece == 0 || n_prompt <= replay.n_skipped) continue;
    if (piece_tokens(replay, n_prompt, text) == 0) {
      capture.problem = "repeats the prompt after itself; one of " + std::to_string(n_prompt) +
                        " tokens leaves no room for that in the model's context of " +
                        std::to_string(text.max_positions);
    } else if (std::ranges::find(replays, replay) == replays.end()) {
      replays.push_back(replay);
    }
  }
  if (n_draft > 0) all.push_back({.n_draft = n_draft});
  for (const Replay& replay : replays) {
    const int32_t piece = piece_tokens(replay, n_prompt, text);
    for (int32_t begin = replay.n_skipped; begin < n_prompt; begin += piece) {
      all.push_back({.replay = replay, .begin = begin, .end = std::min(begin + piece, n_prompt)});
    }
  }
  return all;
}

}  // namespace vlcache
