// SequenceTokens: the tokens of a sequence, and how far each has been computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/token_info.h"

namespace vlcache {

// Tokens [begin, end) of a sequence.
struct TokenRun {
  int32_t begin = 0;
  int32_t end = 0;
};

enum class TokenState : uint8_t {
  kPending,   // waits to be computed
  kEntering,  // waits to go through the first layers; deeper ones will load it
  kLoaded,    // a SlotSource supplies its K and V, layer by layer, when later tokens are computed
  kComputed,  // went through the model; the cache has seen its K and V
  kOutside,   // before the window of a policy that computes the last tokens only; never computed again
};

constexpr bool is_pending(TokenState s) { return s == TokenState::kPending || s == TokenState::kEntering; }
constexpr bool is_supplied(TokenState s) { return s == TokenState::kLoaded || s == TokenState::kEntering; }

class SequenceTokens {
 public:
  std::span<const TokenInfo> all() const { return tokens_; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  TokenState state(int32_t token) const { return states_[static_cast<size_t>(token)]; }
  std::span<const TokenState> states() const { return states_; }
  // Tokens before the first pending one.
  int32_t n_done() const { return n_done_; }
  int32_t n_pending() const { return n_pending_; }
  // One more than the largest component of a position so far, of tokens that are not outside.
  int32_t next_position() const { return next_position_; }
  // SlotMeta::bias of `tokens`, in `out`; empty if no token of the sequence has one.
  std::span<const float> biases(std::span<const int32_t> tokens, std::vector<float>& out) const;
  // The first supplied token in [begin, end); end: none.
  int32_t find_supplied(int32_t begin, int32_t end) const;

  void reserve(int32_t n_more);
  // Appends a pending token, as text: at the next position.
  void add(TokenInfo token);
  // Appends tokens [begin, end) once more, as pending, placed relative to each other as they are.
  void repeat(int32_t begin, int32_t end);
  // Replaces all tokens; the first n_kept keep their states, the others are pending.
  void take(std::vector<TokenInfo> tokens, int32_t n_kept);
  void truncate(int32_t n);
  // What truncate(n) would remove, to be appended again.
  struct Tail {
    std::vector<TokenInfo> tokens;
    std::vector<TokenState> states;
  };
  Tail tail(int32_t n) const;
  void append(const Tail& tail);

  void set(std::span<const TokenRun> runs, TokenState state);
  void replace(TokenState from, TokenState to);
  // Only the last `window` tokens are computed. All positions move by one number, so that the smallest component among
  // these is 0.
  void slide(int32_t window);
  // The pending ones among these have gone through all layers, or all that they enter.
  void finish(std::span<const TokenRun> runs);

 private:
  void count();

  std::vector<TokenInfo> tokens_;
  std::vector<TokenState> states_;
  int32_t n_done_ = 0, n_pending_ = 0, next_position_ = 0;
  bool biased_ = false;  // some token has a bias
};

}  // namespace vlcache
