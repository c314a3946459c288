#include "grammar/token_masks.h"

#include <algorithm>

#include "base/function_ref.h"
#include "grammar/json_rules.h"

namespace vlcache {
namespace {

// Masks of counts; there are few unless requests choose bounds for their number. Some kB each.
constexpr size_t kMaxCounted = 512;
// The work of a walk over a vocabulary is bounded by the lengths of its tokens.
constexpr int64_t kAnyWork = INT64_MAX;

void set(std::span<uint64_t> bits, int32_t token) {
  bits[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

// Visits the nodes [begin, end) of the trie whose bytes the matcher accepts, parents first.
void walk(const TokenTrie& trie, Matcher& matcher, int32_t begin, int32_t end, FunctionRef<void(int32_t node)> visit) {
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  std::vector<int32_t> open;  // ends of the nodes whose bytes the matcher has taken
  for (int32_t i = begin; i < end;) {
    for (; !open.empty() && open.back() == i; open.pop_back()) matcher.pop();
    const TokenTrie::Node& node = nodes[static_cast<size_t>(i)];
    if (!matcher.push(node.byte)) {
      i = node.end;
      continue;
    }
    visit(i);
    open.push_back(node.end);
    ++i;
  }
  for (; !open.empty(); open.pop_back()) matcher.pop();
}

}  // namespace

StateMasks::MaskPtr StateMasks::walk(const Automaton& automaton, int32_t state, Automaton::Count count) const {
  auto mask = std::make_shared<Mask>();
  if (automaton.state(state).edges.empty()) return mask;
  Matcher matcher(automaton, kAnyWork);
  matcher.begin_in(state, count);
  const std::span<const TokenTrie::Node> nodes = trie_.nodes();
  vlcache::walk(trie_, matcher, 0, static_cast<int32_t>(nodes.size()), [&](int32_t i) {
    const TokenTrie::Node& node = nodes[static_cast<size_t>(i)];
    const std::span<const int32_t> tokens = trie_.tokens(node);
    mask->tokens.insert(mask->tokens.end(), tokens.begin(), tokens.end());
    if (matcher.may_end() && node.end > i + 1) mask->exits.push_back(i);
  });
  const auto n_words = static_cast<size_t>(trie_.n_ids() + 63) / 64;
  if (mask->tokens.size() * sizeof(int32_t) > n_words * sizeof(uint64_t)) {
    mask->bits.resize(n_words);
    for (const int32_t token : mask->tokens) set(mask->bits, token);
    mask->tokens = {};
  }
  mask->tokens.shrink_to_fit();
  return mask;
}

namespace {

// Two matchers from two states of one rule, over the nodes of the trie where they differ.
class Difference {
 public:
  Difference(const TokenTrie& trie, const Automaton& automaton, int32_t state, int32_t other)
      : trie_(trie), mine_(automaton, kAnyWork), theirs_(automaton, kAnyWork) {
    mine_.begin_in(state);
    theirs_.begin_in(other);
  }

  void find(StateMasks::Mask& mask) {
    nodes(0, static_cast<int32_t>(trie_.nodes().size()), /*in_mine=*/true, /*in_theirs=*/true, mask);
    // Elsewhere the rule ends as it does from the other state.
    auto next = skipped_.begin();
    for (const int32_t exit : mask.base->exits) {
      while (next != skipped_.end() && next->second <= exit) ++next;
      if (next != skipped_.end() && next->first <= exit) mask.exits.push_back(exit);
    }
  }

 private:
  void nodes(int32_t begin, int32_t end, bool in_mine, bool in_theirs, StateMasks::Mask& mask) {
    for (int32_t i = begin; i < end;) {
      const TokenTrie::Node& node = trie_.nodes()[static_cast<size_t>(i)];
      const bool mine = in_mine && mine_.push(node.byte), theirs = in_theirs && theirs_.push(node.byte);
      if (mine && theirs && same()) {
        skipped_.emplace_back(i, node.end);
      } else if (mine || theirs) {
        const std::span<const int32_t> tokens = trie_.tokens(node);
        if (mine && !theirs) mask.tokens.insert(mask.tokens.end(), tokens.begin(), tokens.end());
        if (theirs && !mine) mask.without.insert(mask.without.end(), tokens.begin(), tokens.end());
        if (mine && mine_.may_end() && node.end > i + 1) mask.exits.push_back(i);
        nodes(i + 1, node.end, mine, theirs, mask);
      }
      if (mine) mine_.pop();
      if (theirs) theirs_.pop();
      i = node.end;
    }
  }

  // Whether both texts have led to the same states of their rule, outside calls.
  bool same() const {
    return std::ranges::equal(mine_.places(), theirs_.places(), [](const Matcher::Place& a, const Matcher::Place& b) {
      return a.state == b.state && a.frame == 0 && b.frame == 0;
    });
  }

  const TokenTrie& trie_;
  Matcher mine_, theirs_;
  std::vector<std::pair<int32_t, int32_t>> skipped_;  // nodes from, to: ascending
};

}  // namespace

StateMasks::MaskPtr StateMasks::walk_from(const Automaton& automaton, int32_t state, MaskPtr base) const {
  auto mask = std::make_shared<Mask>();
  mask->base = std::move(base);
  Difference(trie_, automaton, state, automaton.state(state).like).find(*mask);
  return mask;
}

StateMasks::MaskPtr StateMasks::of(const Automaton& automaton, int32_t state, Automaton::Count count) {
  const Automaton::State& s = automaton.state(state);
  if (s.counted) {
    const int32_t longest = trie_.depth();
    count = {std::clamp(count.least, 0, longest), std::clamp(count.most, 0, longest)};
    const Key key(state, count.least, count.most);
    const std::lock_guard lock(mutex_);
    const auto known = counted_.find(key);
    if (known != counted_.end()) return known->second;
    MaskPtr mask = walk(automaton, state, count);
    if (counted_.size() < kMaxCounted) counted_[key] = mask;
    return mask;
  }
  MaskPtr base = s.like == Automaton::kNothing ? nullptr : of(automaton, s.like);
  const std::lock_guard lock(mutex_);
  const auto i = static_cast<size_t>(state);
  if (masks_.size() <= i) masks_.resize(i + 1);
  if (masks_[i] == nullptr) {
    masks_[i] = base == nullptr ? walk(automaton, state, {}) : walk_from(automaton, state, std::move(base));
  }
  return masks_[i];
}

void StateMasks::Mask::add_to(std::span<uint64_t> out) const {
  if (base != nullptr) {
    std::vector<int32_t> unset;  // that others have not set
    for (const int32_t token : without) {
      if ((out[static_cast<size_t>(token) / 64] >> (token % 64) & 1) == 0) unset.push_back(token);
    }
    base->add_to(out);
    for (const int32_t token : unset) out[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
  }
  for (size_t i = 0; i < bits.size(); ++i) out[i] |= bits[i];
  for (const int32_t token : tokens) set(out, token);
}

void TokenMasks::make(Clock::time_point until) {
  for (int32_t s = 0; s < automaton_.n_states() && Clock::now() < until; ++s) {
    if (automaton_.state(s).counted) continue;  // which counts will be met is not known
    (s < n_json_states() ? json_masks_ : masks_).of(automaton_, s);
  }
}

void TokenMasks::allowed(Matcher& matcher, std::span<uint64_t> bits) {
  std::ranges::fill(bits, 0);
  const std::vector<Matcher::Place> places(matcher.places().begin(), matcher.places().end());
  for (const Matcher::Place& place : places) {
    const Automaton::State& state = automaton_.state(place.state);
    if (state.edges.empty()) continue;
    Automaton::Count count;
    if (state.counted) {
      count = matcher.count(place.frame);
      count = {count.least - place.count, count.most - place.count};
    }
    const bool shared = place.state < n_json_states();
    const StateMasks::MaskPtr mask = (shared ? json_masks_ : masks_).of(automaton_, place.state, count);
    mask->add_to(bits);
    if (mask->exits.empty() || !matcher.push_after(place.frame)) continue;
    for (const int32_t exit : mask->exits) {
      const int32_t end = trie_.nodes()[static_cast<size_t>(exit)].end;
      walk(trie_, matcher, exit + 1, end, [&](int32_t i) {
        for (const int32_t token : trie_.tokens(trie_.nodes()[static_cast<size_t>(i)])) set(bits, token);
      });
    }
    matcher.pop();
  }
}

}  // namespace vlcache
