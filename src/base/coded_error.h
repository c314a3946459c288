// CodedError: an Error with a name that programs act on, as OpenAI's and Anthropic's clients know it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace vlcache {

class CodedError : public Error {
 public:
  // `name`: "context_length_exceeded"; `param`: the field of the request that is at fault, empty: none.
  CodedError(ErrorCode code, const std::string& message, std::string name, std::string param = "")
      : Error(code, message), name_(std::move(name)), param_(std::move(param)) {}
  const std::string& name() const { return name_; }
  const std::string& param() const { return param_; }

 private:
  std::string name_, param_;
};

// A prompt of n_tokens where max_tokens fit.
class PromptTooLong : public CodedError {
 public:
  PromptTooLong(const std::string& message, int64_t n_tokens, int64_t max_tokens)
      : CodedError(ErrorCode::kInput, message, "context_length_exceeded", "messages"),
        n_tokens_(n_tokens),
        max_tokens_(max_tokens) {}
  int64_t n_tokens() const { return n_tokens_; }
  int64_t max_tokens() const { return max_tokens_; }

 private:
  int64_t n_tokens_, max_tokens_;
};

}  // namespace vlcache
