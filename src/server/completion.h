// POST /v1/completions, the older way to ask: text or tokens as they are, no messages and no chat template.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_reply.h"
#include "server/chat_request.h"
#include "server/http_server.h"

namespace vlcache {

class Engine;

struct CompletionRequest {
  struct Text {
    std::string text;             // or
    std::vector<int32_t> tokens;  // where these are not empty
  };
  std::vector<Text> prompts;
  ChatRequest fields;  // all but messages; each prompt has fields.n answers
};

// Throws Error(kInput) whose message begins with the field's name.
CompletionRequest read_completion_request(std::string_view body, const ChatRequest& defaults, const ChatLimits& limits);

// The answers of one request, which come from the inference thread as they end: answer i is the (i % n)-th of prompt
// i / n.
class CompletionAnswer {
 public:
  CompletionAnswer(AnswerHead head, CompletionRequest asked, HttpReplyPtr reply, const Tokenizer& tokenizer);

  void begin();
  void text(int index, std::string_view text);
  void done(int index, GenerateResult result);

 private:
  size_t n_answers() const { return asked_.prompts.size() * static_cast<size_t>(asked_.fields.n); }
  void finish();
  nlohmann::ordered_json usage() const;

  AnswerHead head_;
  CompletionRequest asked_;
  HttpReplyPtr reply_;
  const Tokenizer& tokenizer_;
  std::map<int, GenerateResult> results_;
  std::optional<Error> error_;
};

}  // namespace vlcache
