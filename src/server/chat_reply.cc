// Shapes of OpenAI's API.
#include "server/chat_reply.h"

#include <cmath>

#include "io/tokenizer/tokenizer.h"
#include "server/answer.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string text = tokenizer.decode({&id, 1}, /*skip_special_tokens=*/false);
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

OrderedJson logprobs_json(const GenerateResult& result, const Tokenizer& tokenizer) {
  if (!result.has_logprobs) return nullptr;
  OrderedJson content = OrderedJson::array();
  for (const GeneratedToken& token : result.tokens) {
    OrderedJson& entry = content.emplace_back(token_json(tokenizer, token.id, token.logprob));
    OrderedJson& top = entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& other : token.top) top.push_back(token_json(tokenizer, other.token, other.logprob));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson head_json(const ChatHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

}  // namespace

OrderedJson usage_json(std::span<const GenerateResult> results) {
  size_t n_completion = 0;
  for (const GenerateResult& result : results) n_completion += result.tokens.size();
  const int32_t n_prompt = results.empty() ? 0 : results[0].n_prompt;
  const double n_cached = results.empty() ? 0 : results[0].cache.n_loaded();
  return {{"prompt_tokens", n_prompt},
          {"completion_tokens", n_completion},
          {"total_tokens", static_cast<size_t>(n_prompt) + n_completion},
          {"prompt_tokens_details", {{"cached_tokens", std::llround(n_cached)}}}};
}

OrderedJson chat_json(const ChatHead& head, const ChatRequest& asked, std::span<const GenerateResult> results,
                      const Tokenizer& tokenizer) {
  OrderedJson json = head_json(head, "chat.completion");
  OrderedJson& choices = json["choices"] = OrderedJson::array();
  for (size_t i = 0; i < results.size(); ++i) {
    choices.push_back({{"index", i},
                       {"message", {{"role", "assistant"}, {"content", results[i].text}, {"refusal", nullptr}}},
                       {"logprobs", logprobs_json(results[i], tokenizer)},
                       {"finish_reason", results[i].finish_reason}});
  }
  json["usage"] = usage_json(results);
  if (!results.empty()) json["vlcache"] = served_json(results[0], asked.explain);
  return json;
}

std::string event(const OrderedJson& json) {
  return "data: " + json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n\n";
}

OrderedJson chunk_json(const ChatHead& head, int index, OrderedJson delta, const std::string& finish_reason) {
  OrderedJson json = head_json(head, "chat.completion.chunk");
  json["choices"] = {{{"index", index},
                      {"delta", std::move(delta)},
                      {"logprobs", nullptr},
                      {"finish_reason", finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)}}};
  return json;
}

int http_status(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInput:
    case ErrorCode::kUnsupported:
    case ErrorCode::kShape:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kMemory:
      return 413;
    case ErrorCode::kCancelled:  // its time was up
      return 504;
    case ErrorCode::kIo:
      break;
  }
  return 500;
}

OrderedJson error_json(const Error& error) {
  const std::string message = error.what();
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.[]0123456789");
  const bool names_field = end != std::string::npos && end > 0 && message[end] == ':';
  const bool asked_wrong = http_status(error) < 500;
  return {{"error",
           {{"message", message},
            {"type", asked_wrong ? "invalid_request_error" : "server_error"},
            {"param", names_field ? OrderedJson(message.substr(0, end)) : OrderedJson()},
            {"code", nullptr}}}};
}

}  // namespace vlcache
