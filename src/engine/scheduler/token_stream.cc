#include "engine/scheduler/token_stream.h"

#include <algorithm>
#include <limits>

#include "engine/engine.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

bool is_among(std::span<const int32_t> tokens, size_t token) {
  return std::ranges::find(tokens, static_cast<int32_t>(token)) != tokens.end();
}

// Sets the logits of end tokens to -infinity, unless no other token is allowed, as where a grammar ends.
void forbid_ends(std::span<float> logits, std::span<const int32_t> ends) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  size_t i = 0;
  while (i < logits.size() && (logits[i] == kNever || is_among(ends, i))) ++i;
  if (i == logits.size()) return;
  for (const int32_t token : ends) {
    if (token >= 0 && static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] = kNever;
  }
}

}  // namespace

TokenStream::TokenStream(const Engine& engine, const Request& request)
    : request_(request), filter_(request.options.stop), ends_(request.options.stop_tokens) {
  if (!request.callbacks.choose) {
    sampler_ = std::make_unique<Sampler>(request.options.sampling, engine.model().config().text.vocab_size);
    sampler_->add_prompt(request.prompt.tokens);
    sampler_->add_prompt(request.given);
  }
  if (engine.has_tokenizer()) {
    decoder_ = std::make_unique<StreamDecoder>(engine.tokenizer(), /*skip_special_tokens=*/true);
  }
  if (!request.options.ignore_eos) std::ranges::copy(engine.stop_token_ids(), std::back_inserter(ends_));
}

TokenStream::~TokenStream() = default;

SampledToken TokenStream::draw(std::span<float> logits) {
  SampledToken token;
  if (sampler_ != nullptr) {
    token = sampler_->sample(logits, [this](std::span<float> allowed) {
      if (request_.constraint != nullptr && !request_.constraint->mask(allowed, ends_)) {
        throw Error(ErrorCode::kUnsupported, "the model has no token for what the answer's grammar asks next");
      }
      if (n_drawn_ < request_.options.min_tokens) forbid_ends(allowed, ends_);
    });
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
         request_.constraint == nullptr && request_.options.min_tokens == 0;
}

bool TokenStream::is_end(int32_t token) const { return std::ranges::find(ends_, token) != ends_.end(); }

std::string TokenStream::take(int32_t token) {
  if (request_.constraint != nullptr) request_.constraint->take(token);
  if (decoder_ == nullptr) return "";
  const std::vector<int32_t>& shown = request_.options.shown_tokens;
  const std::string text = decoder_->push(token, std::ranges::find(shown, token) != shown.end());
  return n_drawn_ > request_.options.min_tokens ? filter_.push(text) : text;
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
