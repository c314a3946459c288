#include "engine/sequence/sequence_tokens.h"

#include <algorithm>

namespace vlcache {

int32_t SequenceTokens::find_supplied(int32_t begin, int32_t end) const {
  const auto first = states_.begin() + begin, last = states_.begin() + end;
  return static_cast<int32_t>(std::find_if(first, last, is_supplied) - states_.begin());
}

void SequenceTokens::count() {
  n_pending_ = static_cast<int32_t>(std::ranges::count_if(states_, is_pending));
  n_done_ = static_cast<int32_t>(std::ranges::find_if(states_, is_pending) - states_.begin());
  next_position_ = 0;
  biased_ = std::ranges::any_of(tokens_, [](const TokenInfo& token) { return token.meta.bias != 0; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (states_[i] != TokenState::kOutside)
      next_position_ = std::max(next_position_, tokens_[i].meta.position.largest() + 1);
  }
}

std::span<const float> SequenceTokens::biases(std::span<const int32_t> tokens, std::vector<float>& out) const {
  out.clear();
  for (const int32_t t : tokens) {
    if (biased_) out.push_back(tokens_[static_cast<size_t>(t)].meta.bias);
  }
  return out;
}

void SequenceTokens::reserve(int32_t n_more) {
  tokens_.reserve(tokens_.size() + static_cast<size_t>(n_more));
  states_.reserve(states_.size() + static_cast<size_t>(n_more));
}

void SequenceTokens::add(TokenInfo token) {
  token.meta.position = Position::all(next_position_++);
  tokens_.push_back(token);
  states_.push_back(TokenState::kPending);
  ++n_pending_;
}

void SequenceTokens::repeat(int32_t begin, int32_t end) {
  int32_t smallest = INT32_MAX;
  for (int32_t t = begin; t < end; ++t) {
    smallest = std::min(smallest, tokens_[static_cast<size_t>(t)].meta.position.smallest());
  }
  const int32_t by = next_position_ - smallest;
  for (int32_t t = begin; t < end; ++t) {
    TokenInfo token = tokens_[static_cast<size_t>(t)];
    token.meta.position = token.meta.position.moved(by);
    next_position_ = std::max(next_position_, token.meta.position.largest() + 1);
    tokens_.push_back(token);
    states_.push_back(TokenState::kPending);
    ++n_pending_;
  }
}

void SequenceTokens::take(std::vector<TokenInfo> tokens, int32_t n_kept) {
  tokens_ = std::move(tokens);
  states_.resize(static_cast<size_t>(n_kept));
  states_.resize(tokens_.size(), TokenState::kPending);
  count();
}

void SequenceTokens::truncate(int32_t n) {
  tokens_.resize(static_cast<size_t>(n));
  states_.resize(static_cast<size_t>(n));
  count();
}

SequenceTokens::Tail SequenceTokens::tail(int32_t n) const {
  return {{tokens_.begin() + n, tokens_.end()}, {states_.begin() + n, states_.end()}};
}

void SequenceTokens::append(const Tail& tail) {
  tokens_.insert(tokens_.end(), tail.tokens.begin(), tail.tokens.end());
  states_.insert(states_.end(), tail.states.begin(), tail.states.end());
  count();
}

void SequenceTokens::set(std::span<const TokenRun> runs, TokenState state) {
  for (const TokenRun& run : runs) std::fill(states_.begin() + run.begin, states_.begin() + run.end, state);
  count();
}

void SequenceTokens::replace(TokenState from, TokenState to) {
  std::ranges::replace(states_, from, to);
  count();
}

void SequenceTokens::slide(int32_t window) {
  const int32_t begin = std::max(0, size() - window);
  std::fill_n(states_.begin(), begin, TokenState::kOutside);
  std::replace(states_.begin() + begin, states_.end(), TokenState::kOutside, TokenState::kPending);  // after a rewind
  int32_t smallest = begin < size() ? INT32_MAX : 0;
  for (int32_t t = begin; t < size(); ++t) {
    smallest = std::min(smallest, tokens_[static_cast<size_t>(t)].meta.position.smallest());
  }
  for (TokenInfo& token : tokens_) token.meta.position = token.meta.position.moved(-smallest);
  count();
}

void SequenceTokens::finish(std::span<const TokenRun> runs) {
  for (const TokenRun& run : runs) {
    for (int32_t t = run.begin; t < run.end; ++t) {
      TokenState& state = states_[static_cast<size_t>(t)];
      if (!is_pending(state)) continue;  // of loaded tokens, only the first layers were computed
      state = state == TokenState::kPending ? TokenState::kComputed : TokenState::kLoaded;
      --n_pending_;
    }
  }
  while (n_done_ < size() && !is_pending(state(n_done_))) ++n_done_;
}

}  // namespace vlcache
