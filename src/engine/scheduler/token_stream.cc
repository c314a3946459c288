#include "engine/scheduler/token_stream.h"

#include <algorithm>
#include <limits>

#include "engine/engine.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool is_among(std::span<const int32_t> tokens, size_t token) {
  return std::ranges::find(tokens, static_cast<int32_t>(token)) != tokens.end();
}

// Sets the logits of tokens that are not `allowed` to -infinity. Returns whether any token is left.
bool keep_allowed(std::span<const uint8_t> allowed, std::span<float> logits) {
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (allowed[i] == 0) logits[i] = kNever;
    any = any || logits[i] > kNever;
  }
  return any;
}

// Sets the logits of end tokens to -infinity, unless no other token is allowed, as where a grammar ends.
void forbid_ends(std::span<float> logits, std::span<const int32_t> ends) {
  size_t i = 0;
  while (i < logits.size() && (logits[i] == kNever || is_among(ends, i))) ++i;
  if (i == logits.size()) return;
  for (const int32_t token : ends) {
    if (token >= 0 && static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] = kNever;
  }
}

}  // namespace

TokenStream::TokenStream(const Engine& engine, const Request& request)
    : request_(request),
      filter_(request.options.stop, request.options.include_stop),
      ends_(request.options.stop_tokens),
      turn_ends_(engine.stop_token_ids()) {
  if (!request.callbacks.choose) {
    const int64_t vocab = engine.model().config().text.vocab_size;
    if (!request.options.allowed_tokens.empty()) allowed_.resize(static_cast<size_t>(vocab));
    for (const int32_t token : request.options.allowed_tokens) {
      if (token >= 0 && token < vocab) allowed_[static_cast<size_t>(token)] = 1;
    }
    sampler_ = std::make_unique<Sampler>(request.options.sampling, vocab);
    sampler_->add_prompt(request.prompt.tokens);
    sampler_->add_prompt(request.given);
  }
  if (engine.has_tokenizer()) {
    const Tokenizer& tokenizer = engine.tokenizer();
    decoder_ = std::make_unique<StreamDecoder>(tokenizer, request.options.skip_special_tokens,
                                               request.options.spaces_between_special);
    std::ranges::copy_if(turn_ends_, std::back_inserter(hidden_), [&](int32_t id) { return tokenizer.is_special(id); });
  }
  if (!request.options.ignore_eos) std::ranges::copy(turn_ends_, std::back_inserter(ends_));
  if (sampler_ == nullptr || !request.options.rules.any()) return;
  rules_ = std::make_unique<TokenFilter>(request.options.rules, ends_);
  rules_->add_prompt(request.prompt.tokens);
  rules_->add_prompt(request.given);
}

TokenStream::~TokenStream() = default;

SampledToken TokenStream::draw(std::span<float> logits) {
  SampledToken token;
  if (sampler_ != nullptr) {
    token = sampler_->sample(logits, [this](std::span<float> allowed) {
      if (request_.constraint != nullptr && !request_.constraint->mask(allowed, ends_)) {
        throw Error(ErrorCode::kUnsupported, "the model has no token for what the answer's grammar asks next");
      }
      if (!allowed_.empty() && !keep_allowed(allowed_, allowed)) {
        throw Error(ErrorCode::kUnsupported,
                    "allowed_token_ids: none of these tokens may come next under the answer's grammar");
      }
      if (rules_ != nullptr) rules_->restrict_logits(allowed);
      if (n_drawn_ < request_.options.min_tokens) forbid_ends(allowed, ends_);
    });
    if (rules_ != nullptr) rules_->take(token.token);
  } else {
    token.token = request_.callbacks.choose(logits);
  }
  ++n_drawn_;
  return token;
}

bool TokenStream::draws_likeliest() const {
  const SamplingParams& sampling = request_.options.sampling;
  return sampler_ != nullptr && sampling.temperature == 0 && sampling.repetition_penalty == 1 &&
         sampling.presence_penalty == 0 && sampling.frequency_penalty == 0 && sampling.biases.empty() &&
         allowed_.empty() && rules_ == nullptr && request_.constraint == nullptr && request_.options.min_tokens == 0;
}

bool TokenStream::is_end(int32_t token) const { return std::ranges::find(ends_, token) != ends_.end(); }

std::string TokenStream::take(int32_t token) {
  if (request_.constraint != nullptr) request_.constraint->take(token);
  return text_of(token);
}

std::string TokenStream::take_end(int32_t token) {
  const bool is_shown = request_.options.include_stop && !is_among(turn_ends_, static_cast<size_t>(token));
  return is_shown ? text_of(token) : "";
}

std::string TokenStream::text_of(int32_t token) {
  if (decoder_ == nullptr) return "";
  const GenerateOptions& options = request_.options;
  const auto id = static_cast<size_t>(token);
  const bool is_shown = is_among(options.shown_tokens, id);
  if (!is_shown && is_among(hidden_, id)) return "";
  const std::string text = decoder_->push(token, is_shown);
  return n_drawn_ > options.min_tokens ? filter_.push(text) : text;
}

bool TokenStream::complete() const {
  return filter_.stopped() || (request_.constraint != nullptr && request_.constraint->complete());
}

std::string TokenStream::finish() {
  if (filter_.stopped() || decoder_ == nullptr) return "";
  std::string text = filter_.push(decoder_->finish());
  return text + filter_.finish();
}

}  // namespace vlcache
