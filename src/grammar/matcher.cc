#include "grammar/matcher.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

Matcher::Matcher(const Automaton& automaton, int64_t max_work)
    : automaton_(automaton),
      max_work_(max_work),
      place_of_state_(static_cast<size_t>(automaton.n_states()), kNone),
      frame_of_rule_(static_cast<size_t>(automaton.n_rules()), kNone) {}

void Matcher::begin(int32_t rule) {
  begin_in(automaton_.start(rule));
  levels_.clear();
  places_.clear();
  begin_level();
  add(automaton_.start(rule), 0, 0);
  finish_level();
}

void Matcher::begin_in(int32_t state, Automaton::Count count) {
  work_ = 0;
  levels_.clear();
  places_.assign(1, {state, 0, 0, kNone});
  frames_.assign(1, {Automaton::kNothing, kNone, count, kNone});
  returns_.clear();
  levels_.push_back({0, 1, 0, false});
}

void Matcher::begin_level() {
  levels_.push_back({static_cast<int32_t>(places_.size()), static_cast<int32_t>(frames_.size()),
                     static_cast<int32_t>(returns_.size()), false});
}

bool Matcher::push(uint8_t byte) {
  const int32_t first = levels_.back().first_place, end = static_cast<int32_t>(places_.size());
  begin_level();
  for (int32_t i = first; i < end; ++i) {
    const Place place = places_[static_cast<size_t>(i)];
    for (const Automaton::Edge& edge : automaton_.state(place.state).edges) {
      if (byte < edge.low || edge.high < byte) continue;
      if (edge.guard == Automaton::Guard::kNone) {
        add(edge.to, place.frame, place.count);
        continue;
      }
      const Automaton::Count bounds = count(place.frame);
      if (edge.guard == Automaton::Guard::kCounts && place.count < bounds.most) {
        add(edge.to, place.frame, place.count + 1);
      }
      if (edge.guard == Automaton::Guard::kCloses && place.count >= bounds.least) add(edge.to, place.frame, 0);
    }
  }
  return finish_level();
}

bool Matcher::push_after(int32_t frame) {
  begin_level();
  if (frame != 0) leave(frame);
  return finish_level();
}

// Follows calls and the ends of rules until no new place is found. A frame created here cannot end here, because no
// rule accepts the empty text, so the list of a frame's callers is complete before it returns.
bool Matcher::finish_level() {
  const auto first = static_cast<size_t>(levels_.back().first_place);
  if (places_.size() == first) {
    levels_.pop_back();
    return false;
  }
  for (size_t i = first; i < places_.size(); ++i) {
    if (++work_ > max_work_) throw Error(ErrorCode::kUnsupported, "the grammar has too many parses of the answer");
    const Place place = places_[i];
    const Automaton::State& state = automaton_.state(place.state);
    for (const Automaton::Call& call : state.calls) enter(call, place);
    if (state.ends) leave(place.frame);
  }
  return true;
}

void Matcher::add(int32_t state, int32_t frame, int32_t count) {
  int32_t& hint = place_of_state_[static_cast<size_t>(state)];
  const int32_t first = levels_.back().first_place, n = static_cast<int32_t>(places_.size());
  const bool known = first <= hint && hint < n && places_[static_cast<size_t>(hint)].state == state;
  const int32_t last = known ? hint : kNone;
  for (int32_t at = last; at != kNone; at = places_[static_cast<size_t>(at)].same_state) {
    const Place& place = places_[static_cast<size_t>(at)];
    if (place.frame == frame && place.count == count) return;
  }
  places_.push_back({state, frame, count, last});
  hint = n;
}

void Matcher::enter(const Automaton::Call& call, const Place& place) {
  if (call.rule == Automaton::kNothing) {
    add(call.to, place.frame, place.count);
    return;
  }
  int32_t& hint = frame_of_rule_[static_cast<size_t>(call.rule)];
  const int32_t n = static_cast<int32_t>(frames_.size());
  const bool known =
      levels_.back().n_frames <= hint && hint < n && frames_[static_cast<size_t>(hint)].rule == call.rule;
  const int32_t last_of_rule = known ? hint : kNone;
  int32_t inner = last_of_rule;
  while (inner != kNone && frames_[static_cast<size_t>(inner)].count != call.count) {
    inner = frames_[static_cast<size_t>(inner)].same_rule;
  }
  const bool is_new = inner == kNone;
  if (is_new) {
    hint = inner = n;
    frames_.push_back({call.rule, kNone, call.count, last_of_rule});
  }
  int32_t& last = frames_[static_cast<size_t>(inner)].last_return;
  returns_.push_back({call.to, place.frame, place.count, last});
  last = static_cast<int32_t>(returns_.size()) - 1;
  if (is_new) add(automaton_.start(call.rule), inner, 0);
}

void Matcher::leave(int32_t frame) {
  if (frame == 0) levels_.back().may_end = true;
  for (int32_t at = frames_[static_cast<size_t>(frame)].last_return; at != kNone;) {
    const Return back = returns_[static_cast<size_t>(at)];
    add(back.to, back.frame, back.count);
    ++work_;
    at = back.next;
  }
}

void Matcher::pop() {
  const Level& level = levels_.back();
  places_.resize(static_cast<size_t>(level.first_place));
  frames_.resize(static_cast<size_t>(level.n_frames));
  returns_.resize(static_cast<size_t>(level.n_returns));
  levels_.pop_back();
  CHECK(!levels_.empty());
}

void Matcher::commit() {
  const Level last = levels_.back();
  places_.erase(places_.begin(), places_.begin() + last.first_place);
  work_ = 0;
  levels_.assign(1, {0, static_cast<int32_t>(frames_.size()), static_cast<int32_t>(returns_.size()), last.may_end});
}

bool Matcher::may_go_on() const {
  return std::ranges::any_of(places(), [&](const Place& p) { return !automaton_.state(p.state).edges.empty(); });
}

}  // namespace vlcache
