// Which of the requests in line goes next: who finds most of its prompt computed, unless others have waited longer
// (longest prefix first, as SGLang has it, arXiv:2312.07104; the ageing is ours).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace vlcache {

// A request in line.
struct InLine {
  int64_t n_matched = 0;  // tokens of its prompt that would not be computed if it started now
  int64_t n_turns = 0;    // requests that have started since it came
  int32_t priority = 0;   // the highest go first, whatever the others find
};

// The index of the one that goes next, the first among equals; of at least one. Only requests that came less than
// kPatience turns later may go before somebody of the same priority, so nobody waits forever.
size_t next_in_line(std::span<const InLine> line);

// Turns after which whoever finds nothing goes before a newcomer who finds most: a start in 32 may so be one that
// washes out what others wait for.
inline constexpr int64_t kPatience = 32;

}  // namespace vlcache
