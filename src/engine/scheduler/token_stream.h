// TokenStream: from logits to the text of an answer: the sampler under the request's constraint, tokens to whole
// characters, stop texts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/stop_filter.h"
#include "engine/sampling/token_filter.h"

namespace vlcache {

class Engine;
class StreamDecoder;

class TokenStream {
 public:
  // Both outlive this. Throws Error(kInput) for sampling options out of range.
  TokenStream(const Engine& engine, const Request& request);
  ~TokenStream();

  // Draws the next token from logits [vocab], which change; the caller's callbacks.choose draws instead if there is
  // one. Throws Error(kUnsupported) where the constraint allows no token of the vocabulary.
  SampledToken draw(std::span<float> logits);
  // Whether the token drawn is the likeliest by the logits as they are: temperature 0, and neither constraint, rule,
  // bias, penalty nor caller change or choose.
  bool draws_likeliest() const;
  // Whether a token ends the generation: a stop token of the model or the request.
  bool is_end(int32_t token) const;
  // Takes the token that was drawn last, which is no end. Returns the text that is now certain.
  std::string take(int32_t token);
  // The same for an end: nothing, unless the options include it and it is the request's own.
  std::string take_end(int32_t token);
  // Whether a stop text has appeared, or nothing may follow under the constraint.
  bool complete() const;
  // The answer ends here: returns the text that was held back.
  std::string finish();
  // The stop text that appeared; empty: none.
  const std::string& stopped_by() const { return filter_.stopped_by(); }

 private:
  std::string text_of(int32_t token);

  const Request& request_;
  std::unique_ptr<Sampler> sampler_;        // null: the caller chooses
  std::unique_ptr<StreamDecoder> decoder_;  // null: no tokenizer
  std::unique_ptr<TokenFilter> rules_;      // null: none, or the caller chooses
  StopFilter filter_;
  std::vector<int32_t> ends_;
  std::vector<int32_t> turn_ends_;  // the model's own, also where they do not end the generation
  std::vector<int32_t> hidden_;     // the special tokens among them, which no answer shows
  std::vector<uint8_t> allowed_;    // by token; empty: all
  int32_t n_drawn_ = 0;
};

}  // namespace vlcache
