// Matcher: the position of a text in an automaton while the text arrives byte by byte. Bytes can be taken back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automaton.h"

namespace vlcache {

// Follows all parses of the text at once. A rule that is called from several places at the same byte is parsed once, in
// a frame with all its callers (the graph-structured stack of generalised LL parsing, Scott and Johnstone 2010), so the
// number of places is bounded by the automaton, however ambiguous it is, and not by the nesting depth of a text.
class Matcher {
 public:
  struct Place {
    int32_t state, frame;
    int32_t count;       // characters that guards have counted in this frame
    int32_t same_state;  // the previous place with this state at this byte; -1: none
  };

  // Steps between two commits, some 2 s. A mask takes up to a million; a grammar with ever more parses of a text (root
  // ::= root root | "a") would hold up all requests.
  static constexpr int64_t kMaxWork = 5'000'000;

  explicit Matcher(const Automaton& automaton, int64_t max_work = kMaxWork);  // must outlive the matcher

  // Starts with an empty text of this rule; or with one whose beginning has led to this state, and to no other, with
  // this many characters to come before the rule's end.
  void begin(int32_t rule);
  void begin_in(int32_t state, Automaton::Count count = {});
  // Adds a byte. False: no text continues like this; the matcher is unchanged.
  // Throws Error(kUnsupported) beyond max_work.
  bool push(uint8_t byte);
  // Continues after the rule of `frame`, without a byte. False as with push().
  bool push_after(int32_t frame);
  // Undoes the last push that returned true.
  void pop();
  // No earlier push will be taken back.
  void commit();

  // The current places of the text, including states before and after calls.
  std::span<const Place> places() const {
    return std::span(places_).subspan(static_cast<size_t>(levels_.back().first_place));
  }
  // The bounds that a frame's caller gave it.
  Automaton::Count count(int32_t frame) const { return frames_[static_cast<size_t>(frame)].count; }
  bool may_end() const { return levels_.back().may_end; }
  bool may_go_on() const;

 private:
  static constexpr int32_t kNone = -1;
  struct Frame {
    int32_t rule;
    int32_t last_return;
    Automaton::Count count;
    int32_t same_rule;  // the previous frame of this rule at this byte
  };
  struct Return {  // after a frame's rule: the state to continue from, its frame, and the count there
    int32_t to, frame, count;
    int32_t next;
  };
  struct Level {  // sizes before a push
    int32_t first_place, n_frames, n_returns;
    bool may_end;
  };
  void begin_level();
  bool finish_level();
  void add(int32_t state, int32_t frame, int32_t count);
  void enter(const Automaton::Call& call, const Place& place);
  void leave(int32_t frame);

  const Automaton& automaton_;
  std::vector<Place> places_;
  std::vector<Frame> frames_;  // the first is that of the text itself, which has no caller
  std::vector<Return> returns_;
  std::vector<Level> levels_;
  int64_t max_work_, work_ = 0;
  // Hints, verified before use: the last place of a state, the last frame of a rule.
  std::vector<int32_t> place_of_state_, frame_of_rule_;
};

}  // namespace vlcache
