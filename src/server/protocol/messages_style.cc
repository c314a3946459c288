// Anthropic's messages: content blocks that begin, grow and stop.
#include <cmath>
#include <utility>

#include "api/result_json.h"
#include "server/http/json_reply.h"
#include "server/http/random_id.h"
#include "server/protocol/answer_style.h"
#include "server/protocol/chat_reply.h"
#include "server/protocol/messages_errors.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string named_event(const char* name, OrderedJson fields) {
  OrderedJson json{{"type", name}};
  json.update(fields);
  return std::string("event: ") + name + "\n" + event(json);
}

// Cached tokens are not part of input_tokens: so Anthropic counts.
OrderedJson usage_of(int32_t n_prompt, int64_t n_cached, size_t n_answer) {
  return {{"input_tokens", n_prompt - n_cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", n_cached},
          {"output_tokens", n_answer}};
}

OrderedJson usage_of(const GenerateResult& result) {
  return usage_of(result.n_prompt, std::llround(result.cache.n_loaded()), result.tokens.size());
}

// stop_reason and stop_sequence.
OrderedJson stop_of(const GenerateResult& result, bool has_calls) {
  OrderedJson stop{{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
  if (result.finish_reason == FinishReason::kLength) {
    stop["stop_reason"] = "max_tokens";
  } else if (has_calls) {
    stop["stop_reason"] = "tool_use";
  } else if (!result.stopped_by.empty()) {
    stop["stop_reason"] = "stop_sequence";
    stop["stop_sequence"] = result.stopped_by;
  }
  return stop;
}

OrderedJson call_block(const ToolCall& call, OrderedJson input) {
  return {{"type", "tool_use"}, {"id", random_id("toolu_")}, {"name", call.name}, {"input", std::move(input)}};
}

class MessagesStyle final : public AnswerStyle {
 public:
  MessagesStyle(const AnswerHead& head, const ChatRequest& asked) : head_(head), asked_(asked) {}

  OrderedJson whole(std::span<const GenerateResult> results) override {
    const GenerateResult& result = results[0];
    const AnswerText answer = read_answer(asked_, result.text);
    OrderedJson json = message();
    if (!answer.thought.empty()) {
      json["content"].push_back({{"type", "thinking"}, {"thinking", answer.thought}, {"signature", ""}});
    }
    if (!answer.content.empty()) json["content"].push_back({{"type", "text"}, {"text", answer.content}});
    for (const ToolCall& call : answer.calls) {
      json["content"].push_back(call_block(call, parse_ordered_json(call.arguments, "arguments")));
    }
    json.update(stop_of(result, !answer.calls.empty()));
    json["usage"] = usage_of(result);
    add_token_ids(result, json);
    json["vlcache"] = served_json(result, asked_.explain(), asked_.notes);
    return json;
  }

  std::string begin() override {
    OrderedJson json = message();
    json["usage"] = usage_of(head_.n_prompt, 0, 0);  // cached tokens are reported at the end
    return named_event("message_start", {{"message", std::move(json)}});
  }
  std::string thought(int, std::string_view text) override {
    std::string out;
    if (!in_thought_) out = start_block({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    in_thought_ = true;
    return out + delta({{"type", "thinking_delta"}, {"thinking", text}});
  }
  std::string text(int, std::string_view text) override {
    std::string out = stop_thought();
    if (!in_text_) out += start_block({{"type", "text"}, {"text", ""}});
    in_text_ = true;
    return out + delta({{"type", "text_delta"}, {"text", text}});
  }
  std::string calls(int, std::span<const ToolCall> calls) override {
    std::string out = stop_thought() + stop_text();
    for (const ToolCall& call : calls) {
      out += start_block(call_block(call, OrderedJson::object()));
      out += delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
      out += stop_block();
    }
    return out;
  }
  std::string ended(int, const GenerateResult& result, bool has_calls) override {
    OrderedJson json{{"delta", stop_of(result, has_calls)}, {"usage", usage_of(result)}};
    add_token_ids(result, json);
    json["vlcache"] = served_json(result, asked_.explain(), asked_.notes);
    return stop_thought() + stop_text() + named_event("message_delta", std::move(json));
  }
  std::string end(std::span<const GenerateResult>) override {
    return named_event("message_stop", OrderedJson::object());
  }
  std::string failed(const Error& error) override {
    return named_event("error", {{"error", messages_error_json(http_status(error), error.what())["error"]}});
  }
  std::string heartbeat() const override { return named_event("ping", OrderedJson::object()); }

 private:
  void add_token_ids(const GenerateResult& result, OrderedJson& json) const {
    if (!asked_.returns_token_ids()) return;
    json["token_ids"] = token_ids_json(result.tokens);
    json["prompt_token_ids"] = head_.prompt_tokens;
  }
  OrderedJson message() const {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", OrderedJson::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }
  std::string start_block(OrderedJson block) const {
    return named_event("content_block_start", {{"index", n_blocks_}, {"content_block", std::move(block)}});
  }
  std::string delta(OrderedJson delta) const {
    return named_event("content_block_delta", {{"index", n_blocks_}, {"delta", std::move(delta)}});
  }
  std::string stop_block() { return named_event("content_block_stop", {{"index", n_blocks_++}}); }
  std::string stop_thought() {
    if (!std::exchange(in_thought_, false)) return "";
    return delta({{"type", "signature_delta"}, {"signature", ""}}) + stop_block();
  }
  std::string stop_text() {
    if (!in_text_) return "";
    in_text_ = false;
    return stop_block();
  }

  AnswerHead head_;
  ChatRequest asked_;
  int n_blocks_ = 0;
  bool in_text_ = false, in_thought_ = false;
};

}  // namespace

std::unique_ptr<AnswerStyle> make_messages_style(const AnswerHead& head, const ChatRequest& asked) {
  return std::make_unique<MessagesStyle>(head, asked);
}

}  // namespace vlcache
