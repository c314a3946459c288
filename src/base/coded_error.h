// CodedError: an Error with a name that programs act on, as OpenAI's and Anthropic's clients know it.
#pragma once

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

}  // namespace vlcache
