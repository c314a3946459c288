#include <utility>

#include "api/result_json.h"
#include "server/http/json_reply.h"
#include "server/protocol/answer_style.h"
#include "server/protocol/chat_reply.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

class ChatStyle final : public AnswerStyle {
 public:
  ChatStyle(const AnswerHead& head, const ChatRequest& asked, const Tokenizer& tokenizer)
      : head_(head),
        asked_(asked),
        tokenizer_(tokenizer),
        n_calls_(static_cast<size_t>(asked.n())),
        told_(n_calls_.size()),
        n_tokens_(n_calls_.size()),
        has_role_(n_calls_.size()) {}

  OrderedJson whole(std::span<const GenerateResult> results) override {
    return chat_json(head_, asked_, results, tokenizer_);
  }
  // Each answer's role is sent with its first words: clients measure the time of the first chunk.
  std::string begin() override { return ""; }
  std::string progress(const PromptProgress& progress) override {
    OrderedJson json = chunk_json(head_, 0, OrderedJson::object(), "");
    add_progress(json, progress);
    return event_of(0, std::move(json));
  }
  void token(int index, const GeneratedToken& token) override {
    ++n_tokens_[static_cast<size_t>(index)];
    if (asked_.has_logprobs() || asked_.returns_token_ids()) {
      told_[static_cast<size_t>(index)].push_back(token);
    }
  }
  std::string text(int index, std::string_view text) override { return chunk(index, {{"content", text}}, ""); }
  std::string thought(int index, std::string_view text) override {
    return chunk(index, {{"reasoning_content", text}}, "");
  }
  std::string calls(int index, std::span<const ToolCall> calls) override {
    int& n_calls = n_calls_[static_cast<size_t>(index)];
    const OrderedJson delta{{"tool_calls", tool_calls_json(calls, n_calls)}};
    n_calls += static_cast<int>(calls.size());
    return chunk(index, delta, "");
  }
  std::string ended(int index, const GenerateResult& result, bool has_calls) override {
    return chunk(index, OrderedJson::object(), finish_reason(result, has_calls));
  }
  std::string end(std::span<const GenerateResult> results) override {
    std::string out;
    if (asked_.include_usage) {
      OrderedJson last = chunk_json(head_, 0, OrderedJson::object(), "");
      last["choices"] = OrderedJson::array();
      last["usage"] = usage_json(results);
      last["vlcache"] = served_json(results[0], asked_.explain(), asked_.notes);
      out = event(last);
    }
    return out + kDone;
  }
  std::string failed(const Error& error) override { return event(error_json(error)) + kDone; }

 private:
  static constexpr const char* kDone = "data: [DONE]\n\n";
  // With usage, as far as the request asks for it: that of the answer so far, or null in all events but the last.
  std::string event_of(int index, OrderedJson json) const {
    if (asked_.continuous_usage) {
      json["usage"] = running_usage_json(head_.n_prompt, n_tokens_[static_cast<size_t>(index)]);
    } else if (asked_.include_usage) {
      json["usage"] = nullptr;
    }
    return event(json);
  }
  std::string chunk(int index, OrderedJson delta, const std::string& finish_reason) {
    std::string role;
    if (!std::exchange(has_role_[static_cast<size_t>(index)], 1)) {
      OrderedJson first = chunk_json(head_, index, {{"role", "assistant"}, {"content", ""}}, "");
      if (asked_.returns_token_ids() && !std::exchange(has_prompt_, true)) {
        first["prompt_token_ids"] = head_.prompt_tokens;
      }
      role = event_of(index, std::move(first));
    }
    OrderedJson json = chunk_json(head_, index, std::move(delta), finish_reason);
    std::vector<GeneratedToken>& tokens = told_[static_cast<size_t>(index)];
    OrderedJson& choice = json["choices"][0];
    if (!tokens.empty() && asked_.has_logprobs()) choice["logprobs"] = logprobs_json(tokens, tokenizer_);
    if (asked_.returns_token_ids()) choice["token_ids"] = token_ids_json(tokens);
    tokens.clear();
    return role + event_of(index, std::move(json));
  }

  AnswerHead head_;
  ChatRequest asked_;
  const Tokenizer& tokenizer_;
  std::vector<int> n_calls_;                       // by answer
  std::vector<std::vector<GeneratedToken>> told_;  // by answer, since its last chunk
  std::vector<int64_t> n_tokens_;                  // by answer, if usage is reported as it grows
  std::vector<char> has_role_;                     // by answer
  bool has_prompt_ = false;                        // its token ids are sent
};

}  // namespace

std::unique_ptr<AnswerStyle> make_chat_style(const AnswerHead& head, const ChatRequest& asked,
                                             const Tokenizer& tokenizer) {
  return std::make_unique<ChatStyle>(head, asked, tokenizer);
}

}  // namespace vlcache
