// Matcher: where a text that comes byte by byte stands in an automaton. Bytes can be taken back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automaton.h"

namespace vlcache {

// Follows all readings of the text at once. A rule that is called from several places at the same byte is read once, in
// a frame that knows all of them (the graph of stacks of generalised LL parsing, Scott and Johnstone 2010), so the
// number of places is bounded by the automaton, however ambiguous it is, and not by how deep a text nests.
class Matcher {
 public:
  struct Place {
    int32_t state, frame;
    int32_t same_state;  // the place before it, of this byte and state; -1: none
  };

  explicit Matcher(const Automaton& automaton);  // which must outlive it

  // An empty text of this rule; or one whose beginning has led to this state, and to no other.
  void begin(int32_t rule);
  void begin_in(int32_t state);
  // The next byte. False: no text goes on like this, and nothing has changed.
  bool push(uint8_t byte);
  // Goes on behind the rule that is read in `frame`, taking nothing. False as with push().
  bool push_behind(int32_t frame);
  // Takes back the last push that was true.
  void pop();
  // Nothing that was pushed will be taken back.
  void commit();

  // Where the text may stand, those states among them that calls lead to and from.
  std::span<const Place> places() const {
    return std::span(places_).subspan(static_cast<size_t>(levels_.back().first_place));
  }
  bool may_end() const { return levels_.back().may_end; }
  bool may_go_on() const;

 private:
  static constexpr int32_t kNone = -1;
  struct Frame {
    int32_t rule;
    int32_t last_return;
  };
  struct Return {  // behind a frame: the state to go on from, and the frame that it is in
    int32_t to, frame;
    int32_t next;
  };
  struct Level {  // what was there before a push
    int32_t first_place, n_frames, n_returns;
    bool may_end;
  };
  void begin_level();
  bool finish_level();
  void add(int32_t state, int32_t frame);
  void enter(const Automaton::Call& call, int32_t frame);
  void leave(int32_t frame);

  const Automaton& automaton_;
  std::vector<Place> places_;
  std::vector<Frame> frames_;  // the first is that of the text itself, which nothing called
  std::vector<Return> returns_;
  std::vector<Level> levels_;
  // Hints that are checked before they are believed: the last place of a state, the last frame of a rule.
  std::vector<int32_t> place_of_state_, frame_of_rule_;
};

}  // namespace vlcache
