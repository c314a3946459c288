// OpenAI's Responses: items are added, grow and are done; every event has a number.
#include <cmath>
#include <utility>

#include "api/result_json.h"
#include "engine/request.h"
#include "server/http/json_reply.h"
#include "server/http/random_id.h"
#include "server/protocol/answer_style.h"
#include "server/protocol/chat_reply.h"
#include "server/protocol/responses_request.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson text_part(const std::string& text, OrderedJson logprobs) {
  return {{"type", "output_text"},
          {"annotations", OrderedJson::array()},
          {"logprobs", std::move(logprobs)},
          {"text", text}};
}

OrderedJson message_item(const std::string& id, const char* status, OrderedJson content) {
  return {{"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}};
}

OrderedJson thought_item(const std::string& id, const char* status, OrderedJson content) {
  return {{"id", id},
          {"type", "reasoning"},
          {"status", status},
          {"summary", OrderedJson::array()},
          {"content", std::move(content)}};
}

OrderedJson thought_part(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

OrderedJson response_usage(const GenerateResult& result, int64_t n_thought) {
  const size_t n_answer = result.tokens.size();
  return {{"input_tokens", result.n_prompt},
          {"input_tokens_details", {{"cached_tokens", std::llround(result.cache.n_loaded())}}},
          {"output_tokens", n_answer},
          {"output_tokens_details", {{"reasoning_tokens", n_thought}}},
          {"total_tokens", static_cast<size_t>(result.n_prompt) + n_answer}};
}

class ResponsesStyle final : public AnswerStyle {
 public:
  ResponsesStyle(const AnswerHead& head, const ChatRequest& asked, const OrderedJson& body, const ResponsesPlan& tools,
                 const Tokenizer& tokenizer)
      : head_(head), asked_(asked), tools_(tools), tokenizer_(tokenizer) {
    // The settings of the request are repeated; clients read these fields.
    const auto given = [&](const char* key, OrderedJson fallback) {
      const auto it = body.find(key);
      echoed_[key] = it == body.end() || it->is_null() ? std::move(fallback) : *it;
    };
    given("instructions", nullptr);
    given("previous_response_id", nullptr);
    given("max_output_tokens", nullptr);
    given("metadata", OrderedJson::object());
    given("parallel_tool_calls", true);
    given("temperature", asked.fields.temperature.value_or(0.0f));
    given("top_logprobs", 0);
    given("top_p", asked.fields.top_p.value_or(1.0f));
    given("text", {{"format", {{"type", "text"}}}});
    given("tools", OrderedJson::array());
    given("tool_choice", "auto");
  }

  OrderedJson whole(std::span<const GenerateResult> results) override {
    const AnswerText answer = read_answer(asked_, results[0].text);
    if (!answer.thought.empty()) {
      items_.push_back(thought_item(random_id("rs_"), "completed", OrderedJson::array({thought_part(answer.thought)})));
    }
    if (!answer.content.empty() || answer.calls.empty()) {
      items_.push_back(
          message_item(random_id("msg_"), "completed", {text_part(answer.content, logprobs(results[0].tokens))}));
    }
    for (const ToolCall& call : answer.calls) {
      const bool custom = tools_.custom.contains(call.name);
      items_.push_back(
          call_item(random_id(custom ? "ctc_" : "fc_"), "completed", random_id("call_"), call, call_text(call)));
    }
    if (tools_.keep) tools_.keep(items_);
    return response(&results[0]);
  }

  std::string begin() override {
    std::string out = numbered("response.created", {{"response", response(nullptr)}});
    return out += numbered("response.in_progress", {{"response", response(nullptr)}});
  }
  void token(int, const GeneratedToken& token) override { told_.push_back(token); }
  std::string thought(int, std::string_view text) override {
    std::string out;
    if (thought_id_.empty()) {
      thought_id_ = random_id("rs_");
      out = added(thought_item(thought_id_, "in_progress", OrderedJson::array()));
    }
    thought_ += text;
    return out + in_item("response.reasoning_text.delta", thought_id_, {{"content_index", 0}, {"delta", text}});
  }
  std::string text(int, std::string_view text) override {
    std::string out = end_thought();
    if (message_.empty()) {
      message_ = random_id("msg_");
      out += added(message_item(message_, "in_progress", OrderedJson::array()));
      out += in_part("response.content_part.added", {{"part", text_part("", OrderedJson::array())}});
    }
    text_ += text;
    return out + in_part("response.output_text.delta", {{"delta", text}, {"logprobs", take_told()}});
  }
  std::string calls(int, std::span<const ToolCall> calls) override {
    std::string out = end_thought() + end_message();
    for (const ToolCall& call : calls) {
      const bool custom = tools_.custom.contains(call.name);
      const std::string id = random_id(custom ? "ctc_" : "fc_"), call_id = random_id("call_"), text = call_text(call);
      out += added(call_item(id, "in_progress", call_id, call, ""));
      if (custom) {
        out += in_item("response.custom_tool_call_input.delta", id, {{"delta", text}});
        out += in_item("response.custom_tool_call_input.done", id, {{"input", text}});
      } else {
        out += in_item("response.function_call_arguments.delta", id, {{"delta", text}});
        out += in_item("response.function_call_arguments.done", id, {{"name", call.name}, {"arguments", text}});
      }
      out += done(call_item(id, "completed", call_id, call, text));
    }
    return out;
  }
  std::string ended(int, const GenerateResult&, bool) override { return end_thought() + end_message(); }
  std::string end(std::span<const GenerateResult> results) override {
    if (tools_.keep) tools_.keep(items_);
    const bool whole = results[0].finish_reason != FinishReason::kLength;
    return numbered(whole ? "response.completed" : "response.incomplete", {{"response", response(&results[0])}});
  }
  std::string failed(const Error& error) override {
    OrderedJson json = response(nullptr);
    json["status"] = "failed";
    const bool too_long = dynamic_cast<const PromptTooLong*>(&error) != nullptr;
    const char* code = too_long                   ? "context_length_exceeded"
                       : http_status(error) < 500 ? "invalid_prompt"
                                                  : "server_error";
    json["error"] = {{"code", code}, {"message", error.what()}};
    return numbered("response.failed", {{"response", std::move(json)}});
  }

 private:
  // Its arguments, or the one text of a custom call.
  std::string call_text(const ToolCall& call) const {
    if (!tools_.custom.contains(call.name)) return call.arguments;
    const OrderedJson arguments = parse_ordered_or_discard(call.arguments);
    const bool plain = arguments.is_object() && arguments.contains("input") && arguments["input"].is_string();
    return plain ? arguments["input"].get<std::string>() : call.arguments;
  }
  // `text`: what is known of call_text.
  OrderedJson call_item(const std::string& id, const char* status, const std::string& call_id, const ToolCall& call,
                        const std::string& text) const {
    const bool custom = tools_.custom.contains(call.name);
    OrderedJson item{{"id", id}, {"type", custom ? "custom_tool_call" : "function_call"}, {"status", status}};
    item["call_id"] = call_id;
    const auto space = tools_.namespaced.find(call.name);
    item["name"] = space == tools_.namespaced.end() ? call.name : space->second.second;
    if (space != tools_.namespaced.end()) item["namespace"] = space->second.first;
    item[custom ? "input" : "arguments"] = text;
    return item;
  }
  // Null: it is not complete yet.
  OrderedJson response(const GenerateResult* result) const {
    const bool cut = result != nullptr && result->finish_reason == FinishReason::kLength;
    OrderedJson json{{"id", head_.id}, {"object", "response"}, {"created_at", head_.created}};
    json["status"] = result == nullptr ? "in_progress" : cut ? "incomplete" : "completed";
    json["background"] = false;
    json["error"] = nullptr;
    json["incomplete_details"] = cut ? OrderedJson{{"reason", "max_output_tokens"}} : OrderedJson();
    json["model"] = head_.model;
    json["output"] = items_;
    json["store"] = tools_.keep != nullptr;
    json.update(echoed_);
    json["usage"] = result == nullptr
                        ? OrderedJson()
                        : response_usage(*result, count_thought_tokens(asked_, result->tokens, tokenizer_));
    if (result != nullptr && asked_.returns_token_ids()) {
      json["token_ids"] = token_ids_json(result->tokens);
      json["prompt_token_ids"] = head_.prompt_tokens;
    }
    if (result != nullptr) json["vlcache"] = served_json(*result, asked_.explain(), asked_.notes);
    return json;
  }
  // Empty unless log probabilities were requested.
  OrderedJson logprobs(std::span<const GeneratedToken> tokens) const {
    if (!asked_.has_logprobs()) return OrderedJson::array();
    return logprobs_json(tokens, tokenizer_)["content"];
  }
  // Log probabilities since the last call; the message has all of them.
  OrderedJson take_told() {
    OrderedJson more = logprobs(std::exchange(told_, {}));
    logprobs_.insert(logprobs_.end(), more.begin(), more.end());
    return more;
  }
  std::string numbered(const char* type, OrderedJson fields) {
    OrderedJson json{{"type", type}, {"sequence_number", n_events_++}};
    json.update(fields);
    return std::string("event: ") + type + "\n" + event(json);
  }
  std::string in_item(const char* type, const std::string& id, OrderedJson fields) {
    OrderedJson json{{"item_id", id}, {"output_index", items_.size()}};
    json.update(fields);
    return numbered(type, std::move(json));
  }
  std::string in_part(const char* type, OrderedJson fields) {
    OrderedJson json{{"content_index", 0}};
    json.update(fields);
    return in_item(type, message_, std::move(json));
  }
  std::string added(OrderedJson item) {
    return numbered("response.output_item.added", {{"output_index", items_.size()}, {"item", std::move(item)}});
  }
  std::string done(OrderedJson item) {
    items_.push_back(item);
    return numbered("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", std::move(item)}});
  }
  std::string end_thought() {
    if (thought_id_.empty()) return "";
    const std::string id = std::exchange(thought_id_, ""), text = std::exchange(thought_, "");
    std::string out = in_item("response.reasoning_text.done", id, {{"content_index", 0}, {"text", text}});
    return out + done(thought_item(id, "completed", OrderedJson::array({thought_part(text)})));
  }
  std::string end_message() {
    if (message_.empty()) return "";
    take_told();
    std::string out = in_part("response.output_text.done", {{"text", text_}, {"logprobs", logprobs_}});
    const OrderedJson part = text_part(text_, std::exchange(logprobs_, OrderedJson::array()));
    out += in_part("response.content_part.done", {{"part", part}});
    out += done(message_item(message_, "completed", OrderedJson::array({part})));
    message_.clear();
    text_.clear();
    return out;
  }

  AnswerHead head_;
  ChatRequest asked_;
  ResponsesPlan tools_;
  const Tokenizer& tokenizer_;
  OrderedJson echoed_;
  OrderedJson items_ = OrderedJson::array();  // complete ones
  std::string thought_id_, thought_;          // in progress
  // Of the message in progress; empty id: there is none.
  std::string message_, text_;
  OrderedJson logprobs_ = OrderedJson::array();  // of its text
  std::vector<GeneratedToken> told_;             // since the last piece of it
  int n_events_ = 0;
};

}  // namespace

std::unique_ptr<AnswerStyle> make_responses_style(const AnswerHead& head, const ChatRequest& asked,
                                                  const OrderedJson& body, const ResponsesPlan& tools,
                                                  const Tokenizer& tokenizer) {
  return std::make_unique<ResponsesStyle>(head, asked, body, tools, tokenizer);
}

}  // namespace vlcache
