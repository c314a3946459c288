// Expressions become nondeterministic automata over code points (Thompson's construction), whose deterministic product
// (subset construction) is built only as far as texts reach it.
#include "grammar/string_set.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "grammar/character_edges.h"
#include "grammar/json_rules.h"

namespace vlcache {
namespace {

constexpr size_t kMaxNfaStates = 30'000, kMaxProductStates = 8'000;

[[noreturn]] void too_large() {
  throw Error(ErrorCode::kUnsupported, "the strings that it allows would need too large an automaton");
}

const CodePointSet kAnyCodePoint = {{0, 0xD7FF}, {0xE000, CodePoints::kLast}};

// Classes of code points that no set of the expressions tells apart.
class Alphabet {
 public:
  // Returns the set's number.
  size_t add(const CodePointSet& set) {
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (std::ranges::equal(sets_[i], set, [](const CodePoints& a, const CodePoints& b) {
            return a.low == b.low && a.high == b.high;
          })) {
        return i;
      }
    }
    sets_.push_back(set);
    return sets_.size() - 1;
  }

  void divide() {
    std::set<int32_t> begins = {0};
    for (const CodePointSet& set : sets_) {
      for (const CodePoints& r : set) {
        begins.insert(r.low);
        begins.insert(r.high + 1);
      }
    }
    begins.insert(0xD800);
    begins.insert(0xE000);
    std::map<std::vector<bool>, size_t> known;
    for (auto at = begins.begin(); at != begins.end(); ++at) {
      const int32_t low = *at, high = std::next(at) == begins.end() ? CodePoints::kLast : *std::next(at) - 1;
      if (low > CodePoints::kLast || (0xD800 <= low && low <= 0xDFFF)) continue;
      std::vector<bool> in(sets_.size());
      for (size_t i = 0; i < sets_.size(); ++i) {
        in[i] = std::ranges::any_of(sets_[i], [&](const CodePoints& r) { return r.low <= low && high <= r.high; });
      }
      const auto [c, is_new] = known.try_emplace(in, classes_.size());
      if (is_new) classes_.emplace_back();
      if (is_new) in_.push_back(in);
      classes_[c->second].push_back({low, high});
    }
  }

  size_t n_classes() const { return classes_.size(); }
  const CodePointSet& of_class(size_t c) const { return classes_[c]; }
  bool has(size_t set, size_t c) const { return in_[c][set]; }

 private:
  std::vector<CodePointSet> sets_, classes_;
  std::vector<std::vector<bool>> in_;  // by class and set
};

// Finds an expression in a text; at the end of the text it is known whether it was found.
class Search {
 public:
  Search(const PatternNode& node, Alphabet& alphabet) : alphabet_(alphabet) {
    const int32_t begin = state(), inside = state(), end = state();
    found_ = state();
    const size_t any = alphabet.add(kAnyCodePoint);
    start_ = begin;
    nfa_[index(begin)].steps.push_back({any, begin});
    skip(begin, inside);
    add(node, inside, end);
    skip(end, found_);
  }

  int32_t start() {
    std::vector<int32_t> set = {start_};
    return known(close(std::move(set), /*begin=*/true, /*end=*/false));
  }
  int32_t next(int32_t from, size_t c) {
    auto& row = next_[index(from)];
    if (row.empty()) row.assign(alphabet_.n_classes(), -1);
    if (row[c] >= 0) return row[c];
    std::vector<int32_t> to;
    for (const int32_t s : sets_[index(from)]) {
      if (s == found_) to.push_back(s);
      for (const Step& step : nfa_[index(s)].steps) {
        if (alphabet_.has(step.set, c)) to.push_back(step.to);
      }
    }
    const int32_t state = known(close(std::move(to), /*begin=*/false, /*end=*/false));
    return next_[index(from)][c] = state;
  }
  bool found_at_end(int32_t state) {
    signed char& known = ends_[index(state)];
    if (known < 0) {
      const std::vector<int32_t> all = close(sets_[index(state)], /*begin=*/state == 0, /*end=*/true);
      known = std::ranges::binary_search(all, found_) ? 1 : 0;
    }
    return known == 1;
  }
  bool always_found(int32_t state) const { return sets_[index(state)] == std::vector<int32_t>{found_}; }

 private:
  struct Step {
    size_t set;
    int32_t to;
  };
  struct NfaState {
    std::vector<Step> steps;
    std::vector<int32_t> skips, skips_at_begin, skips_at_end;
  };
  static size_t index(int32_t i) { return static_cast<size_t>(i); }

  int32_t state() {
    if (nfa_.size() == kMaxNfaStates) too_large();
    nfa_.emplace_back();
    return static_cast<int32_t>(nfa_.size()) - 1;
  }
  void skip(int32_t from, int32_t to) { nfa_[index(from)].skips.push_back(to); }

  void add(const PatternNode& node, int32_t from, int32_t to) {
    switch (node.kind) {
      case PatternNode::Kind::kSet:
        nfa_[index(from)].steps.push_back({alphabet_.add(node.set), to});
        break;
      case PatternNode::Kind::kBegin:
        nfa_[index(from)].skips_at_begin.push_back(to);
        break;
      case PatternNode::Kind::kEnd:
        nfa_[index(from)].skips_at_end.push_back(to);
        break;
      case PatternNode::Kind::kAny:
        for (const PatternNode& part : node.parts) {
          const int32_t begin = state();
          skip(from, begin);
          add(part, begin, to);
        }
        break;
      case PatternNode::Kind::kAll:
        for (const PatternNode& part : node.parts) from = after(part, from);
        skip(from, to);
        break;
      case PatternNode::Kind::kRepeat:
        repeat(node, from, to);
        break;
    }
  }

  int32_t after(const PatternNode& node, int32_t from) {
    const int32_t begin = state(), to = state();
    skip(from, begin);
    add(node, begin, to);
    return to;
  }

  void repeat(const PatternNode& node, int32_t from, int32_t to) {
    for (int i = 0; i < node.least; ++i) from = after(node.parts[0], from);
    if (node.most < 0) {
      const int32_t loop = state();
      skip(from, loop);
      skip(after(node.parts[0], loop), loop);
      from = loop;
    }
    for (int i = node.least; i < node.most; ++i) {
      skip(from, to);
      from = after(node.parts[0], from);
    }
    skip(from, to);
  }

  // With all states that are reached without a character, ascending; a state found once stays.
  std::vector<int32_t> close(std::vector<int32_t> set, bool begin, bool end) {
    mark_.resize(nfa_.size());
    ++round_;
    std::vector<int32_t> out;
    while (!set.empty()) {
      const int32_t s = set.back();
      set.pop_back();
      if (mark_[index(s)] == round_) continue;
      mark_[index(s)] = round_;
      out.push_back(s);
      const NfaState& n = nfa_[index(s)];
      set.insert(set.end(), n.skips.begin(), n.skips.end());
      if (begin) set.insert(set.end(), n.skips_at_begin.begin(), n.skips_at_begin.end());
      if (end) set.insert(set.end(), n.skips_at_end.begin(), n.skips_at_end.end());
    }
    if (mark_[index(found_)] == round_) return {found_};
    // States that only lead on do not tell sets apart.
    std::erase_if(out, [&](int32_t s) {
      const NfaState& n = nfa_[index(s)];
      return n.steps.empty() && n.skips_at_end.empty() && n.skips_at_begin.empty();
    });
    std::ranges::sort(out);
    return out;
  }

  int32_t known(std::vector<int32_t> set) {
    const auto [at, is_new] = ids_.try_emplace(set, static_cast<int32_t>(sets_.size()));
    if (is_new) {
      if (sets_.size() == kMaxProductStates) too_large();
      sets_.push_back(std::move(set));
      next_.emplace_back();
      ends_.push_back(-1);
    }
    return at->second;
  }

  Alphabet& alphabet_;
  std::vector<NfaState> nfa_;
  int32_t start_ = 0, found_ = 0;
  std::map<std::vector<int32_t>, int32_t> ids_;
  std::vector<std::vector<int32_t>> sets_, next_;
  std::vector<signed char> ends_;
  std::vector<int32_t> mark_;
  int32_t round_ = 0;
};

class Product {
 public:
  // `quoted`: JSON strings; else the texts themselves.
  Product(Automaton& automaton, const StringSet& set, bool quoted = true) : a_(automaton), set_(set), quoted_(quoted) {
    bool ascii = false;
    for (const StringPattern& regex : set.all) {
      search(regex.node, /*wanted=*/true);
      for (const StringPattern::Ahead& ahead : regex.ahead) {
        PatternNode anchored{
            .kind = PatternNode::Kind::kAll, .set = {}, .parts = {{.kind = PatternNode::Kind::kBegin}, ahead.node}};
        search(anchored, !ahead.negative);
        ascii = ascii || (ahead.negative && regex.readers_differ);
      }
    }
    for (const StringPattern& regex : set.none) {
      if (!regex.ahead.empty()) throw Error(ErrorCode::kUnsupported, "the opposite of a pattern with look-ahead");
      search(regex.node, /*wanted=*/false);
      ascii = ascii || regex.readers_differ;
    }
    PatternNode texts{.kind = PatternNode::Kind::kAny};
    for (const std::string& text : set.without) texts.parts.push_back(literal_pattern(text));
    if (!set.without.empty()) search(texts, /*wanted=*/false);
    if (ascii)
      search({.kind = PatternNode::Kind::kSet, .set = {{0x80, 0xD7FF}, {0xE000, CodePoints::kLast}}}, /*wanted=*/false);
    alphabet_.divide();
  }

  // Connects the states by the texts; a plain text that is empty is left out. False: there is none.
  bool add(int32_t from, int32_t to) {
    explore();
    const std::vector<bool> useful = leading_on();
    if (!useful[0]) return false;
    std::vector<int32_t> state(states_.size(), -1);
    for (size_t i = 0; i < states_.size(); ++i) {
      if (useful[i]) state[i] = i == 0 && quoted_ ? a_.text(from, "\"") : a_.add_state();
    }
    CharacterEdges edges(a_, quoted_ ? CharacterEdges::Form::kJson : CharacterEdges::Form::kPlain);
    const auto add_edges = [&](size_t i, int32_t at) {
      std::map<int32_t, CodePointSet> sets;
      for (size_t c = 0; c < alphabet_.n_classes(); ++c) {
        const int32_t next = next_[i][c];
        if (next < 0 || !useful[static_cast<size_t>(next)]) continue;
        CodePointSet& set = sets[state[static_cast<size_t>(next)]];
        set.insert(set.end(), alphabet_.of_class(c).begin(), alphabet_.of_class(c).end());
      }
      for (auto& [next, set] : sets) edges.add(normalized(std::move(set)), at, next);
    };
    for (size_t i = 0; i < states_.size(); ++i) {
      if (!useful[i]) continue;
      if (ends_[i] && quoted_) a_.text(state[i], "\"", to);
      if (ends_[i] && !quoted_) a_.skip(state[i], to);
      add_edges(i, state[i]);
    }
    if (!quoted_) add_edges(0, from);  // the first state may be met again, and end there
    return true;
  }
  // After add(): whether the empty text is one of them.
  bool has_empty() const { return ends_[0]; }

 private:
  using State = std::vector<int32_t>;  // of each search, and the number of characters

  void search(const PatternNode& node, bool wanted) {
    searches_.emplace_back(node, alphabet_);
    wanted_.push_back(wanted);
  }

  int32_t known(State state) {
    const auto [at, is_new] = ids_.try_emplace(state, static_cast<int32_t>(states_.size()));
    if (is_new) {
      if (states_.size() == kMaxProductStates) too_large();
      a_.check_time();
      states_.push_back(std::move(state));
    }
    return at->second;
  }

  // Characters beyond these do not matter.
  int32_t counted(int32_t n) const {
    const int64_t most = set_.most >= 0 ? set_.most : set_.least;
    return static_cast<int32_t>(std::min<int64_t>(n, std::min<int64_t>(most, INT32_MAX - 1)));
  }

  void explore() {
    State start;
    for (Search& s : searches_) start.push_back(s.start());
    start.push_back(0);
    known(std::move(start));
    for (size_t i = 0; i < states_.size(); ++i) {
      const State from = states_[i];
      bool ends = from.back() >= set_.least;
      for (size_t k = 0; k < searches_.size() && ends; ++k) ends = searches_[k].found_at_end(from[k]) == wanted_[k];
      ends_.push_back(ends);
      next_.emplace_back(alphabet_.n_classes(), -1);
      if (set_.most >= 0 && from.back() >= set_.most) continue;
      for (size_t c = 0; c < alphabet_.n_classes(); ++c) {
        State to;
        bool lost = false;
        for (size_t k = 0; k < searches_.size() && !lost; ++k) {
          to.push_back(searches_[k].next(from[k], c));
          lost = !wanted_[k] && searches_[k].always_found(to.back());
        }
        if (lost) continue;
        to.push_back(counted(from.back() + 1));
        next_[i][c] = known(std::move(to));
      }
    }
  }

  // Whether a text can end from there.
  std::vector<bool> leading_on() const {
    std::vector<std::vector<int32_t>> before(states_.size());
    for (size_t i = 0; i < states_.size(); ++i) {
      for (const int32_t next : next_[i]) {
        if (next >= 0) before[static_cast<size_t>(next)].push_back(static_cast<int32_t>(i));
      }
    }
    std::vector<bool> useful = ends_;
    std::vector<int32_t> open;
    for (size_t i = 0; i < states_.size(); ++i) {
      if (useful[i]) open.push_back(static_cast<int32_t>(i));
    }
    while (!open.empty()) {
      const int32_t s = open.back();
      open.pop_back();
      for (const int32_t b : before[static_cast<size_t>(s)]) {
        if (useful[static_cast<size_t>(b)]) continue;
        useful[static_cast<size_t>(b)] = true;
        open.push_back(b);
      }
    }
    return useful;
  }

  Automaton& a_;
  const StringSet& set_;
  bool quoted_;
  Alphabet alphabet_;
  std::vector<Search> searches_;
  std::vector<bool> wanted_;
  std::map<State, int32_t> ids_;
  std::vector<State> states_;
  std::vector<bool> ends_;
  std::vector<std::vector<int32_t>> next_;
};

}  // namespace

bool strings_of(Automaton& automaton, const StringSet& set, int32_t from, int32_t to) {
  if (set.most >= 0 && set.least > set.most) return false;
  const bool no_pattern = set.all.empty() && set.none.empty();
  if (set.any()) {
    automaton.call(from, kJsonString, to);
  } else if (no_pattern && set.without.empty()) {
    const auto least = static_cast<int32_t>(std::min<int64_t>(set.least, Automaton::Count::kUnlimited));
    const auto most = set.most < 0 || set.most > Automaton::Count::kUnlimited ? Automaton::Count::kUnlimited
                                                                              : static_cast<int32_t>(set.most);
    automaton.call(from, kJsonCountedString, to, {least, most});
  } else if (no_pattern && set.least == 0 && set.most < 0) {
    json_string_unlike(automaton, from, set.without, to);
  } else {
    return Product(automaton, set).add(from, to);
  }
  return true;
}

std::optional<bool> plain_texts_of(Automaton& automaton, const StringPattern& pattern, int32_t from, int32_t to) {
  StringSet set;
  StringPattern& whole = set.all.emplace_back(pattern);
  PatternNode anchored{.kind = PatternNode::Kind::kAll};
  anchored.parts.push_back({.kind = PatternNode::Kind::kBegin});
  anchored.parts.push_back(std::move(whole.node));
  anchored.parts.push_back({.kind = PatternNode::Kind::kEnd});
  whole.node = std::move(anchored);
  Product product(automaton, set, /*quoted=*/false);
  if (!product.add(from, to)) return std::nullopt;
  return product.has_empty();
}

}  // namespace vlcache
