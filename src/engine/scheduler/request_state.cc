#include "engine/scheduler/request_state.h"

#include <array>

namespace vlcache {
namespace {

constexpr int kNStates = 10;

// One row for each state, in the order of RequestState: its name and the states that may follow, an x for each.
struct Row {
  std::string_view name;
  std::string_view next;
};
// clang-format off
constexpr std::array<Row, kNStates> kTable{{
    // to          queued loading encoding prefill preview lookahead acting decode preempted finished
    {"queued",     "-      x       x        x       -       -         -      -      -         x"},
    {"loading",    "x      -       x        x       x       x         -      x      x         x"},
    {"encoding",   "x      x       -        x       x       x         -      x      x         x"},
    {"prefill",    "x      x       x        -       x       x         x      x      x         x"},
    {"preview",    "x      x       x        x       -       -         -      -      x         x"},
    {"lookahead",  "-      x       x        x       -       -         x      x      x         x"},
    // To prefill: the rest of a prompt, or of an answer that a preempted request computes again.
    {"acting",     "-      x       x        x       -       -         -      x      x         x"},
    // Policies that keep no KV compute the prompt again for every token. Loading and lookahead: after preemption.
    {"decode",     "-      x       x        x       -       x         x      -      x         x"},
    {"preempted",  "-      x       x        x       -       -         -      x      -         x"},
    {"finished",   "-      -       -        -       -       -         -      -      -         -"},
}};
// clang-format on

// Bits of the states that may follow.
constexpr std::array<uint16_t, kNStates> followers() {
  std::array<uint16_t, kNStates> bits{};
  for (size_t from = 0; from < kTable.size(); ++from) {
    int to = 0;
    for (const char c : kTable[from].next) {
      if (c == 'x') bits[from] = static_cast<uint16_t>(bits[from] | 1u << to);
      to += c != ' ';
    }
  }
  return bits;
}

constexpr std::array<uint16_t, kNStates> kFollowers = followers();

}  // namespace

std::string_view name(RequestState state) { return kTable[static_cast<size_t>(state)].name; }

bool may_follow(RequestState from, RequestState to) {
  if (from == to) return from != RequestState::kFinished;
  return (kFollowers[static_cast<size_t>(from)] >> static_cast<int>(to) & 1) != 0;
}

}  // namespace vlcache
