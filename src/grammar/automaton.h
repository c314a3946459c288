// Automaton: the texts of a grammar, as rules made of states that are connected by bytes and that call each other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace vlcache {

// How many characters (or others) a rule with guards accepts.
struct CharacterCount {
  static constexpr int32_t kUnlimited = INT32_MAX;

  int32_t least = 0, most = kUnlimited;
  bool operator==(const CharacterCount&) const = default;
};

// A recursive transition network. A rule is its start state and all states reachable from it; a text belongs to it if
// its bytes lead to a state that `ends`. No rule may accept the empty text (Matcher relies on that).
class Automaton {
 public:
  // Beyond this limit a schema is broken rather than large: a state needs some 100 bytes.
  static constexpr int32_t kMaxStates = 100'000;
  static constexpr int32_t kNothing = -1;  // instead of a rule: a call that consumes no bytes

  // What an edge asks of the number that its rule has counted so far, which the caller's Count bounds.
  enum class Guard : uint8_t {
    kNone,
    kCounts,  // one more: fewer than the most
    kCloses,  // at least the least
  };
  using Count = CharacterCount;
  struct Edge {
    uint8_t low, high;
    Guard guard;
    int32_t to;
  };
  struct Call {
    int32_t rule, to;
    Count count;  // for the guards in the rule
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<Call> calls;
    bool ends = false;
    bool counted = false;  // in a rule with guards
    // A state of the same rule that most bytes lead on from as they do from here; masks (token_masks.h) of this state
    // are found from that one's. kNothing: none.
    int32_t like = kNothing;
  };

  // Throws Error(kInput) beyond kMaxStates, and as check_time does.
  int32_t add_state();
  int32_t add_rule();  // with a new state as its start
  void bytes(int32_t from, uint8_t low, uint8_t high, int32_t to, Guard guard = Guard::kNone);
  // Returns the state after this text.
  int32_t text(int32_t from, std::string_view text);
  void text(int32_t from, std::string_view text, int32_t to);
  void call(int32_t from, int32_t rule, int32_t to, Count count = {});
  void skip(int32_t from, int32_t to) { call(from, kNothing, to); }
  void end(int32_t state) { states_[static_cast<size_t>(state)].ends = true; }
  void set_counted(int32_t state) { states_[static_cast<size_t>(state)].counted = true; }
  void set_like(int32_t state, int32_t other) { states_[static_cast<size_t>(state)].like = other; }

  // A limit of the time in which it is built; check_time() throws Error(kInput) after it.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }
  void check_time() const;

  // Removes dead ends: edges and calls after which no text can end. Returns whether a text of each rule can end.
  std::vector<bool> trim(std::span<const int32_t> rules);
  bool trim(int32_t rule) { return trim({&rule, 1})[0]; }

  const State& state(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  int32_t start(int32_t rule) const { return starts_[static_cast<size_t>(rule)]; }
  int32_t n_states() const { return static_cast<int32_t>(states_.size()); }
  int32_t n_rules() const { return static_cast<int32_t>(starts_.size()); }

 private:
  std::vector<bool> finishing() const;

  std::vector<State> states_;
  std::vector<int32_t> starts_;  // by rule
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace vlcache
