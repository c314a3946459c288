#include "api/thoughts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

constexpr std::string_view kWhite = " \t\r\n";

// How many bytes at the end of `text` may be the beginning of `tag`.
size_t n_held(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

class AfterThought final : public TokenConstraint {
 public:
  AfterThought(std::unique_ptr<TokenConstraint> inner, const ThoughtLimits& limits, const Tokenizer& tokenizer)
      : inner_(std::move(inner)),
        limits_(limits),
        tokenizer_(tokenizer),
        open_(tokenizer.token_id(limits.tags.open)),
        state_(limits.in_thought ? State::kThought : State::kBegin) {
    // The thought ends with the tag's own token, or with the tokens of its text.
    const int32_t close = tokenizer.token_id(limits.tags.close);
    closing_ = close >= 0 ? std::vector<int32_t>{close} : tokenizer.encode(limits.tags.close, false);
  }

  bool mask(std::span<float> logits, std::span<const int32_t> ends) override {
    if (state_ == State::kThought) return mask_thought(logits, ends);
    if (inner_ == nullptr) return true;
    if (state_ == State::kAfter || open_ < 0) return inner_->mask(logits, ends);
    const float open = logits[static_cast<size_t>(open_)];
    const bool any = inner_->mask(logits, ends);
    logits[static_cast<size_t>(open_)] = open;  // a thought may come first
    return any || open > kNever;
  }

  void take(int32_t token) override {
    if (state_ == State::kThought) {
      ++n_tokens_;
      if (n_forced_ > 0 || must_close()) ++n_forced_;
      tail_ += tokenizer_.is_special(token) ? tokenizer_.token_text(token) : tokenizer_.token_bytes(token);
      const std::string& close = limits_.tags.close;
      if (tail_.find(close) != std::string::npos) state_ = State::kAfter;
      if (tail_.size() > 4 * close.size()) tail_.erase(0, tail_.size() - 2 * close.size());
      return;
    }
    if (state_ == State::kBegin && token == open_) {
      state_ = State::kThought;
      return;
    }
    state_ = State::kAfter;
    if (inner_ != nullptr) inner_->take(token);
  }

  bool complete() const override { return state_ == State::kAfter && inner_ != nullptr && inner_->complete(); }

 private:
  enum class State { kBegin, kThought, kAfter };
  static constexpr float kNever = -std::numeric_limits<float>::infinity();

  bool must_close() const { return limits_.max_tokens && n_tokens_ > *limits_.max_tokens; }

  bool mask_thought(std::span<float> logits, std::span<const int32_t> ends) {
    if (limits_.max_tokens && (n_forced_ > 0 || n_tokens_ >= *limits_.max_tokens)) {
      const int32_t next = closing_[std::min(n_forced_, closing_.size() - 1)];
      for (size_t i = 0; i < logits.size(); ++i) {
        if (static_cast<int32_t>(i) != next) logits[i] = kNever;
      }
      return logits[static_cast<size_t>(next)] > kNever;
    }
    if (inner_ == nullptr) return true;
    for (const int32_t end : ends) {  // what is asked for is still to come
      if (end >= 0 && static_cast<size_t>(end) < logits.size()) logits[static_cast<size_t>(end)] = kNever;
    }
    return true;
  }

  std::unique_ptr<TokenConstraint> inner_;
  ThoughtLimits limits_;
  const Tokenizer& tokenizer_;
  int32_t open_;  // -1: the tag is no token
  std::vector<int32_t> closing_;
  State state_;
  int n_tokens_ = 0;     // of the thought
  size_t n_forced_ = 0;  // of them, those that close it
  std::string tail_;     // of the thought
};

}  // namespace

ThoughtReader::ThoughtReader(ThoughtTags tags, bool in_thought)
    : tags_(std::move(tags)),
      state_(!tags_.any() ? State::kText
             : in_thought ? State::kThought
                          : State::kBegin) {}

ThoughtReader::Piece ThoughtReader::push(std::string_view text) {
  Piece piece;
  if (state_ == State::kText) {
    piece.text = text;
    return piece;
  }
  held_ += text;
  read(piece, /*ended=*/false);
  return piece;
}

ThoughtReader::Piece ThoughtReader::finish() {
  Piece piece;
  read(piece, /*ended=*/true);
  return piece;
}

void ThoughtReader::read(Piece& piece, bool ended) {
  if (state_ == State::kBegin) {
    const size_t begin = std::min(held_.find_first_not_of(kWhite), held_.size());
    const std::string_view said = std::string_view(held_).substr(begin);
    if (said.starts_with(tags_.open)) {
      held_.erase(0, begin + tags_.open.size());
      state_ = State::kThought;
    } else if (ended || !std::string_view(tags_.open).starts_with(said)) {
      state_ = State::kText;
    }
  }
  if (state_ == State::kThought) read_thought(piece, ended);
  if (state_ == State::kAfter) {
    held_.erase(0, std::min(held_.find_first_not_of(kWhite), held_.size()));
    if (!held_.empty()) state_ = State::kText;
  }
  if (state_ == State::kText) piece.text += std::exchange(held_, "");
}

// White space around a thought belongs to its form.
void ThoughtReader::read_thought(Piece& piece, bool ended) {
  const size_t close = held_.find(tags_.close);
  const bool closed = close != held_.npos;
  size_t n = closed ? close : held_.size() - (ended ? 0 : n_held(held_, tags_.close));
  if (!has_thought_) {
    const size_t n_white = std::min(held_.find_first_not_of(kWhite), n);
    held_.erase(0, n_white);
    n -= n_white;
  }
  const size_t end = n == 0 ? 0 : held_.find_last_not_of(kWhite, n - 1) + 1;
  has_thought_ = has_thought_ || end > 0;
  piece.thought += held_.substr(0, end);
  held_.erase(0, closed ? n + tags_.close.size() : ended ? n : end);
  if (closed) state_ = State::kAfter;
}

std::unique_ptr<TokenConstraint> constrain_after_thought(std::unique_ptr<TokenConstraint> inner,
                                                         const ThoughtLimits& limits, const Tokenizer& tokenizer) {
  return std::make_unique<AfterThought>(std::move(inner), limits, tokenizer);
}

}  // namespace vlcache
