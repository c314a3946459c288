#include "server/protocol/chat_reply.h"

#include <openssl/rand.h>

#include <cmath>

#include "api/result_json.h"
#include "base/exact_json.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string text = tokenizer.decode({&id, 1}, /*skip_special_tokens=*/false);
  OrderedJson bytes = OrderedJson::array();
  for (const char c : tokenizer.is_special(id) ? text : tokenizer.token_bytes(id))
    bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

// Nine letters and digits, as Mistral's templates require.
std::string call_id() {
  unsigned char bytes[9] = {};
  RAND_bytes(bytes, sizeof bytes);
  std::string id;
  for (const unsigned char b : bytes) id += "abcdefghijklmnopqrstuvwxyz012345"[b & 31];
  return id;
}

OrderedJson message_json(const AnswerText& answer) {
  OrderedJson message{{"role", "assistant"}, {"content", answer.content}, {"refusal", nullptr}};
  if (!answer.thought.empty()) message["reasoning_content"] = answer.thought;
  if (answer.calls.empty()) return message;
  if (answer.content.empty()) message["content"] = nullptr;
  message["tool_calls"] = tool_calls_json(answer.calls);
  return message;
}

OrderedJson head_json(const AnswerHead& head, const char* object) {
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

OrderedJson running_usage_json(int64_t n_prompt, int64_t n_completion) {
  return {{"prompt_tokens", n_prompt}, {"completion_tokens", n_completion}, {"total_tokens", n_prompt + n_completion}};
}

void add_progress(OrderedJson& event, const PromptProgress& progress) {
  event["prompt_progress"] = {{"total", progress.n_total},
                              {"cache", progress.n_cached},
                              {"processed", progress.n_done},
                              {"time_ms", std::llround(progress.ms)}};
  const auto rounded = [](double value, double places) { return std::round(value * places) / places; };
  OrderedJson& own = event["vlcache_progress"] = {{"share", rounded(progress.share, 1e4)}};
  if (progress.seconds_left) own["seconds_left"] = rounded(*progress.seconds_left, 10);
  if (progress.waiting) own["waiting"] = true;
}

OrderedJson logprobs_json(std::span<const GeneratedToken> tokens, const Tokenizer& tokenizer) {
  OrderedJson content = OrderedJson::array();
  for (const GeneratedToken& token : tokens) {
    OrderedJson& entry = content.emplace_back(token_json(tokenizer, token.id, token.logprob));
    OrderedJson& top = entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& other : token.top) top.push_back(token_json(tokenizer, other.token, other.logprob));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson token_ids_json(std::span<const GeneratedToken> tokens) {
  OrderedJson ids = OrderedJson::array();
  for (const GeneratedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

AnswerText read_answer(const ChatRequest& asked, const std::string& text) {
  AnswerText answer;
  ThoughtReader thoughts(asked.thoughts, asked.in_thought);
  std::string said;
  for (const bool last : {false, true}) {
    const ThoughtReader::Piece piece = last ? thoughts.finish() : thoughts.push(text);
    answer.thought += piece.thought;
    said += piece.text;
  }
  if (!asked.include_thoughts) answer.thought.clear();
  if (!asked.tools.may_call()) {
    answer.content = std::move(said);
    return answer;
  }
  ToolCallReader reader(asked.call_syntax, asked.tools.names(), asked.calls_are_held(),
                        asked.tools.string_parameters());
  for (const bool last : {false, true}) {
    const ToolCallReader::Piece piece = last ? reader.finish() : reader.push(said);
    answer.content += piece.text;
    answer.calls.insert(answer.calls.end(), piece.calls.begin(), piece.calls.end());
  }
  return answer;
}

int64_t count_thought_tokens(const ChatRequest& asked, std::span<const GeneratedToken> tokens,
                             const Tokenizer& tokenizer) {
  if (!asked.thoughts.any()) return 0;
  std::string text = asked.in_thought ? asked.thoughts.open : "";
  int64_t n = 0;
  for (const GeneratedToken& token : tokens) {
    ++n;
    const bool special = tokenizer.is_special(token.id);
    text += special ? tokenizer.token_text(token.id) : tokenizer.token_bytes(token.id);
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos) continue;
    const std::string_view said = std::string_view(text).substr(begin);
    const std::string& open = asked.thoughts.open;
    if (!said.starts_with(open.substr(0, said.size()))) return 0;
    if (said.find(asked.thoughts.close) != said.npos) return n;
  }
  return text.find(asked.thoughts.open) != text.npos ? n : 0;
}

std::string finish_reason(const GenerateResult& result, bool has_calls) {
  return has_calls && result.finish_reason == FinishReason::kStop ? "tool_calls" : name(result.finish_reason);
}

OrderedJson tool_calls_json(std::span<const ToolCall> calls, int first) {
  OrderedJson list = OrderedJson::array();
  for (const ToolCall& call : calls) {
    OrderedJson& one = list.emplace_back(OrderedJson::object());
    if (first >= 0) one["index"] = first++;
    one["id"] = call_id();
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
  }
  return list;
}

OrderedJson chat_json(const AnswerHead& head, const ChatRequest& asked, std::span<const GenerateResult> results,
                      const Tokenizer& tokenizer) {
  OrderedJson json = head_json(head, "chat.completion");
  OrderedJson& choices = json["choices"] = OrderedJson::array();
  for (size_t i = 0; i < results.size(); ++i) {
    const AnswerText answer = read_answer(asked, results[i].text);
    choices.push_back({{"index", i},
                       {"message", message_json(answer)},
                       {"logprobs", results[i].has_logprobs ? logprobs_json(results[i].tokens, tokenizer) : nullptr},
                       {"finish_reason", finish_reason(results[i], !answer.calls.empty())}});
    if (asked.returns_token_ids()) choices.back()["token_ids"] = token_ids_json(results[i].tokens);
  }
  json["usage"] = usage_json(results);
  if (asked.returns_token_ids()) json["prompt_token_ids"] = head.prompt_tokens;
  if (!results.empty()) json["vlcache"] = served_json(results[0], asked.explain(), asked.notes);
  return json;
}

std::string event(const OrderedJson& json) { return "data: " + dump_exact_json(json) + "\n\n"; }

OrderedJson chunk_json(const AnswerHead& head, int index, OrderedJson delta, const std::string& finish_reason) {
  OrderedJson json = head_json(head, "chat.completion.chunk");
  json["choices"] =
      OrderedJson::array({{{"index", index},
                           {"delta", std::move(delta)},
                           {"logprobs", nullptr},
                           {"finish_reason", finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)}}});
  return json;
}

}  // namespace vlcache
