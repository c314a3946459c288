#include "grammar/token_masks.h"

#include <algorithm>

#include "base/function_ref.h"
#include "grammar/json_rules.h"

namespace vlcache {
namespace {

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

std::unique_ptr<StateMasks::Mask> StateMasks::walk(const Automaton& automaton, int32_t state) const {
  auto mask = std::make_unique<Mask>();
  if (automaton.state(state).edges.empty()) return mask;
  Matcher matcher(automaton);
  matcher.begin_in(state);
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

const StateMasks::Mask& StateMasks::of(const Automaton& automaton, int32_t state) {
  const std::lock_guard lock(mutex_);
  const auto i = static_cast<size_t>(state);
  if (masks_.size() <= i) masks_.resize(i + 1);
  if (masks_[i] == nullptr) masks_[i] = walk(automaton, state);
  return *masks_[i];
}

void TokenMasks::make(Clock::time_point until) {
  for (int32_t s = 0; s < automaton_.n_states() && Clock::now() < until; ++s) {
    (s < n_json_states() ? json_masks_ : masks_).of(automaton_, s);
  }
}

void TokenMasks::allowed(Matcher& matcher, std::span<uint64_t> bits) {
  std::ranges::fill(bits, 0);
  const std::vector<Matcher::Place> places(matcher.places().begin(), matcher.places().end());
  for (const Matcher::Place& place : places) {
    const bool shared = place.state < n_json_states();
    const StateMasks::Mask& mask = (shared ? json_masks_ : masks_).of(automaton_, place.state);
    for (size_t i = 0; i < mask.bits.size(); ++i) bits[i] |= mask.bits[i];
    for (const int32_t token : mask.tokens) set(bits, token);
    if (mask.exits.empty() || !matcher.push_after(place.frame)) continue;
    for (const int32_t exit : mask.exits) {
      const int32_t end = trie_.nodes()[static_cast<size_t>(exit)].end;
      walk(trie_, matcher, exit + 1, end, [&](int32_t i) {
        for (const int32_t token : trie_.tokens(trie_.nodes()[static_cast<size_t>(i)])) set(bits, token);
      });
    }
    matcher.pop();
  }
}

}  // namespace vlcache
