#include "grammar/automaton.h"

#include "base/error.h"

namespace vlcache {

int32_t Automaton::add_state() {
  if (n_states() == kMaxStates) {
    throw Error(ErrorCode::kInput, "the schema is too large: its grammar has more than " + std::to_string(kMaxStates) +
                                       " states; shorten its lists (enum, minItems, maxItems, properties)");
  }
  if (n_states() % 256 == 0) check_time();
  states_.emplace_back();
  return n_states() - 1;
}

void Automaton::check_time() const {
  if (Clock::now() <= deadline_) return;
  throw Error(ErrorCode::kInput,
              "the schema takes too long to compile; use fewer alternatives (oneOf, anyOf, if), or shorter patterns");
}

int32_t Automaton::add_rule() {
  starts_.push_back(add_state());
  return n_rules() - 1;
}

void Automaton::bytes(int32_t from, uint8_t low, uint8_t high, int32_t to, Guard guard) {
  states_[static_cast<size_t>(from)].edges.push_back({low, high, guard, to});
}

int32_t Automaton::text(int32_t from, std::string_view text) {
  for (const char c : text) {
    const int32_t to = add_state();
    bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

void Automaton::text(int32_t from, std::string_view text, int32_t to) {
  CHECK(!text.empty());
  const auto last = static_cast<uint8_t>(text.back());
  bytes(this->text(from, text.substr(0, text.size() - 1)), last, last, to);
}

void Automaton::call(int32_t from, int32_t rule, int32_t to, Count count) {
  states_[static_cast<size_t>(from)].calls.push_back({rule, to, count});
}

// The states after which a text can end, found backwards from the final states.
std::vector<bool> Automaton::finishing() const {
  struct Before {  // a state that becomes finishing with another one, if `with` is finishing, too
    int32_t state, with;
  };
  std::vector<std::vector<Before>> before(states_.size());
  for (int32_t s = 0; s < n_states(); ++s) {
    for (const Edge& edge : state(s).edges) before[static_cast<size_t>(edge.to)].push_back({s, edge.to});
    for (const Call& call : state(s).calls) {
      const int32_t inner = call.rule == kNothing ? call.to : start(call.rule);
      before[static_cast<size_t>(call.to)].push_back({s, inner});
      if (inner != call.to) before[static_cast<size_t>(inner)].push_back({s, call.to});
    }
  }
  std::vector<bool> finishing(states_.size());
  std::vector<int32_t> found;
  const auto add = [&](int32_t s) {
    if (finishing[static_cast<size_t>(s)]) return;
    finishing[static_cast<size_t>(s)] = true;
    found.push_back(s);
  };
  for (int32_t s = 0; s < n_states(); ++s) {
    if (state(s).ends) add(s);
  }
  while (!found.empty()) {
    const int32_t s = found.back();
    found.pop_back();
    for (const Before& b : before[static_cast<size_t>(s)]) {
      if (finishing[static_cast<size_t>(b.with)]) add(b.state);
    }
  }
  return finishing;
}

std::vector<bool> Automaton::trim(std::span<const int32_t> rules) {
  const std::vector<bool> ok = finishing();
  const auto dead = [&](int32_t s) { return !ok[static_cast<size_t>(s)]; };
  for (State& s : states_) {
    std::erase_if(s.edges, [&](const Edge& e) { return dead(e.to); });
    std::erase_if(s.calls, [&](const Call& c) { return dead(c.to) || (c.rule != kNothing && dead(start(c.rule))); });
  }
  std::vector<bool> can_end;
  for (const int32_t rule : rules) can_end.push_back(!dead(start(rule)));
  return can_end;
}

}  // namespace vlcache
