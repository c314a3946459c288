// AnswerStyle writes answers in the format of an endpoint, whole or as the pieces of a stream. One object a request.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/request.h"
#include "server/protocol/chat_reply.h"

namespace vlcache {

class Tokenizer;
struct ResponsesPlan;

class AnswerStyle {
 public:
  virtual ~AnswerStyle() = default;

  virtual nlohmann::ordered_json whole(std::span<const GenerateResult> results) = 0;

  // The pieces of a stream, "" for nothing: its beginning, more of answer `index`, the end of that answer (with or
  // without calls), and the end of the stream; or its failure, after which nothing follows.
  virtual std::string begin() = 0;
  virtual std::string text(int index, std::string_view text) = 0;
  // More of the thought before the answer's text.
  virtual std::string thought(int /*index*/, std::string_view /*text*/) { return ""; }
  // How far the work before the first token is.
  virtual std::string progress(const PromptProgress& /*progress*/) { return ""; }
  // A token of answer `index`, before the text that it completes; for styles that report log probabilities.
  virtual void token(int /*index*/, const GeneratedToken& /*token*/) {}
  virtual std::string calls(int index, std::span<const ToolCall> calls) = 0;
  virtual std::string ended(int index, const GenerateResult& result, bool has_calls) = 0;
  virtual std::string end(std::span<const GenerateResult> results) = 0;
  virtual std::string failed(const Error& error) = 0;
  // Sent while there is nothing else to send; constant.
  virtual std::string heartbeat() const { return ": waiting\n\n"; }
};

std::unique_ptr<AnswerStyle> make_chat_style(const AnswerHead& head, const ChatRequest& asked,
                                             const Tokenizer& tokenizer);
std::unique_ptr<AnswerStyle> make_messages_style(const AnswerHead& head, const ChatRequest& asked);
std::unique_ptr<AnswerStyle> make_responses_style(const AnswerHead& head, const ChatRequest& asked,
                                                  const nlohmann::ordered_json& body, const ResponsesPlan& tools,
                                                  const Tokenizer& tokenizer);

}  // namespace vlcache
