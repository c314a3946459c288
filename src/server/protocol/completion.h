// CompletionRequest: the body of POST /v1/completions, the older endpoint for plain text or tokens, without messages
// and chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/protocol/answer_style.h"
#include "server/protocol/chat_request.h"

namespace vlcache {

struct CompletionRequest {
  struct Text {
    std::string text;             // or
    std::vector<int32_t> tokens;  // where these are not empty
  };
  std::vector<Text> prompts;
  ChatRequest fields;  // all but messages; each prompt has fields.n answers

  size_t n_answers() const { return prompts.size() * static_cast<size_t>(fields.n()); }
};

// Throws Error(kInput) whose message begins with the field's name.
CompletionRequest read_completion_request(std::string_view body, const RequestFields& defaults,
                                          const ChatLimits& limits);

// Answer i is the (i % n)-th of prompt i / n.
std::unique_ptr<AnswerStyle> make_completion_style(const AnswerHead& head, const CompletionRequest& asked,
                                                   const Tokenizer& tokenizer);

}  // namespace vlcache
