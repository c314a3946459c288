// Lookahead: tokens that are computed after a prompt for its policy, before it acts, and then discarded: a draft of the
// answer, or a replay of the prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/capture.h"

namespace vlcache {

struct Lookahead {
  int32_t n_draft = 0;  // > 0: a draft, of at most that many tokens
  // Otherwise an instruction and tokens [begin, end) of the prompt again, for requests with this replay.
  Replay replay;
  int32_t begin = 0, end = 0;
  int32_t first_own = 0;       // the first lookahead token
  int32_t first_repeated = 0;  // the token that repeats `begin`
};

// Token ids of the instructions.
struct ReplayText {
  std::vector<int32_t> first;   // before the first piece
  std::vector<int32_t> later;   // before each later one; the tokens that precede the piece follow
  std::vector<int32_t> suffix;  // after both: where the chat template begins the answer
  int32_t max_positions = 0;    // of the model's context; 0: any
};

// The lookahead that `captures` request after n_prompt tokens, the draft first, then every replay's pieces in order. A
// piece has as many tokens as the context has room for; if these are too few, the capture's `problem` is set. The
// last two members are left to the caller.
std::vector<Lookahead> list_lookaheads(std::span<Capture> captures, int32_t n_prompt, const ReplayText& text);

// A later piece's instruction ends with this many tokens that precede the piece.
inline constexpr int32_t kReplayOverlap = 8;

}  // namespace vlcache
