// What a policy wants to have computed behind a prompt before it acts, and forgotten then: a draft of the answer,
// repetitions of the prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/capture.h"

namespace vlcache {

struct Rehearsal {
  int32_t n_draft = 0;  // > 0: a draft, of so many tokens at most
  // Else an instruction and tokens [begin, end) of the prompt again, for requests with this replay.
  Replay replay;
  int32_t begin = 0, end = 0;
  int32_t begin_position = 0, end_position = 0;  // of these tokens in the prompt
  int32_t own_position = 0;                      // of the first token of the rehearsal
  int32_t first_repeated = 0;                    // the token that repeats `begin`
};

// Token ids of the instructions.
struct ReplayText {
  std::vector<int32_t> first;   // in front of the first piece
  std::vector<int32_t> later;   // of each later one; the tokens that it is to start behind follow
  std::vector<int32_t> suffix;  // behind both: where the chat template lets the answer begin
  int32_t max_positions = 0;    // of the model's context; 0: any
};

// What `captures` ask for behind n_prompt tokens, the draft first, then every replay's pieces in order. A piece has as
// many tokens as the context leaves room for; where those are too few, it is the capture's problem. Positions are left
// to the caller.
std::vector<Rehearsal> list_rehearsals(std::span<Capture> captures, int32_t n_prompt, const ReplayText& text);

// A later piece's instruction ends with so many tokens in front of the piece.
inline constexpr int32_t kReplayOverlap = 8;

}  // namespace vlcache
