// EncodeLimits: what encoding a text may cost. EncodeBudget: how much of it is left, for the parts of the tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace vlcache {

struct EncodeLimits {
  int64_t max_tokens = INT64_MAX;             // special tokens that are added not counted
  std::function<bool()> cancelled = nullptr;  // asked many times a second; empty: never
};

// A text of more tokens than EncodeLimits allow; the rest of it was not read.
class TextTooLong : public Error {
 public:
  explicit TextTooLong(int64_t max_tokens)
      : Error(ErrorCode::kInput, "the text has more than " + std::to_string(max_tokens) + " tokens"),
        max_tokens_(max_tokens) {}
  int64_t max_tokens() const { return max_tokens_; }

 private:
  int64_t max_tokens_;
};

class EncodeBudget {
 public:
  EncodeBudget() = default;
  explicit EncodeBudget(const EncodeLimits& limits) : limits_(&limits) {}

  int64_t max_tokens() const { return limits_ == nullptr ? INT64_MAX : limits_->max_tokens; }
  // Throws TextTooLong if the text has at least n tokens and may not.
  void check(int64_t n) const {
    if (n > max_tokens()) throw TextTooLong(max_tokens());
  }
  // To be called for every word, match or merge: throws Error(kCancelled) if encoding is cancelled.
  void tick() {
    constexpr uint32_t kOften = 4096;  // some tenths of a millisecond
    if (limits_ == nullptr || ++n_ticks_ % kOften != 0 || !limits_->cancelled || !limits_->cancelled()) return;
    throw Error(ErrorCode::kCancelled, "cancelled while the prompt was tokenised");
  }

 private:
  const EncodeLimits* limits_ = nullptr;  // null: none
  uint32_t n_ticks_ = 0;
};

}  // namespace vlcache
