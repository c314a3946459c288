// What an answer looks like to OpenAI's clients: whole, or as the pieces of a stream.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/request.h"
#include "server/chat_request.h"

namespace vlcache {

class Tokenizer;

// What is the same in all pieces of an answer.
struct ChatHead {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

// prompt_tokens, completion_tokens (of all answers), total_tokens, prompt_tokens_details.cached_tokens: those that were
// not computed.
nlohmann::ordered_json usage_json(std::span<const GenerateResult> results);
nlohmann::ordered_json chat_json(const ChatHead& head, const ChatRequest& asked,
                                 std::span<const GenerateResult> results, const Tokenizer& tokenizer);
// A `data:` line of a stream.
std::string event(const nlohmann::ordered_json& json);
nlohmann::ordered_json chunk_json(const ChatHead& head, int index, nlohmann::ordered_json delta,
                                  const std::string& finish_reason);
// {"error": {message, type, param, code}}; `param` is the field that the message begins with.
nlohmann::ordered_json error_json(const Error& error);
int http_status(const Error& error);

}  // namespace vlcache
