#include "server/protocol/completion.h"

#include <algorithm>
#include <cmath>

#include "api/json_fields.h"
#include "api/result_json.h"
#include "base/json.h"
#include "io/tokenizer/tokenizer.h"
#include "server/http/json_reply.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxPrompts = 64;
constexpr int32_t kDefaultTokens = 16;  // as OpenAI has it

bool is_tokens(const OrderedJson& json) {
  return json.is_array() && !json.empty() &&
         std::ranges::all_of(json, [](const OrderedJson& id) { return id.is_number_integer(); });
}

CompletionRequest::Text read_prompt(const OrderedJson& json, const std::string& where) {
  if (json.is_string() && !json.get_ref<const std::string&>().empty()) return {json.get<std::string>(), {}};
  if (!is_tokens(json)) bad_field(where + ": expected text, or a list of token ids, not empty");
  CompletionRequest::Text prompt;
  for (const OrderedJson& id : json) {
    const bool good = id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
    if (!good) bad_field(where + ": expected token ids, found " + id.dump());
    prompt.tokens.push_back(id.get<int32_t>());
  }
  return prompt;
}

std::vector<CompletionRequest::Text> read_prompts(const OrderedJson& body) {
  const auto prompt = body.find("prompt");
  if (prompt == body.end()) bad_field("prompt: expected text, a list of token ids, or a list of these");
  if (!prompt->is_array() || is_tokens(*prompt)) return {read_prompt(*prompt, "prompt")};
  if (prompt->empty() || prompt->size() > kMaxPrompts) {
    bad_field("prompt: expected 1 to " + std::to_string(kMaxPrompts) + " prompts");
  }
  std::vector<CompletionRequest::Text> prompts;
  for (size_t i = 0; i < prompt->size(); ++i) {
    prompts.push_back(read_prompt((*prompt)[i], "prompt[" + std::to_string(i) + "]"));
  }
  return prompts;
}

// Fields that would change the answer, but are not supported.
void refuse_unsupported_completion(const OrderedJson& body) {
  if (const auto echo = body.find("echo"); echo != body.end() && !echo->is_null() && *echo != false) {
    bad_field("echo: not supported by this server");
  }
  if (const auto suffix = body.find("suffix"); suffix != body.end() && !suffix->is_null() && *suffix != "") {
    bad_field("suffix: not supported by this server");
  }
  const auto best_of = body.find("best_of");
  if (best_of != body.end() && !best_of->is_null() && *best_of != body.value("n", OrderedJson(1))) {
    bad_field("best_of: expected what n is; others are not supported by this server");
  }
}

int64_t n_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

// Of tokens whose text begins at `offset`, in characters; moves `offset` to its end.
OrderedJson logprobs_json(std::span<const GeneratedToken> told, int64_t& offset, const Tokenizer& tokenizer) {
  OrderedJson tokens = OrderedJson::array(), logprobs = tokens, tops = tokens, offsets = tokens;
  const auto text_of = [&](int32_t id) { return tokenizer.decode({&id, 1}, /*skip_special_tokens=*/false); };
  for (const GeneratedToken& token : told) {
    const std::string text = text_of(token.id);
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& other : token.top) top[text_of(other.token)] = other.logprob;
    tokens.push_back(text);
    logprobs.push_back(token.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += n_characters(text);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

OrderedJson completion_head(const AnswerHead& head) {
  return {{"id", head.id}, {"object", "text_completion"}, {"created", head.created}, {"model", head.model}};
}

OrderedJson choice_json(int index, std::string_view text, OrderedJson logprobs, const std::string& finish_reason) {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)}};
}

class CompletionStyle final : public AnswerStyle {
 public:
  CompletionStyle(const AnswerHead& head, const CompletionRequest& asked, const Tokenizer& tokenizer)
      : head_(head),
        n_(static_cast<size_t>(asked.fields.n())),
        include_usage_(asked.fields.include_usage),
        explain_(asked.fields.explain()),
        tokenizer_(tokenizer),
        told_(asked.n_answers()) {}

  OrderedJson whole(std::span<const GenerateResult> results) override {
    OrderedJson json = ending(results);
    for (size_t i = 0; i < results.size(); ++i) {
      const GenerateResult& r = results[i];
      int64_t offset = 0;
      OrderedJson logprobs = r.has_logprobs ? logprobs_json(r.tokens, offset, tokenizer_) : nullptr;
      json["choices"].push_back(choice_json(static_cast<int>(i), r.text, std::move(logprobs), name(r.finish_reason)));
    }
    return json;
  }
  std::string begin() override { return ""; }
  std::string progress(int n_done, int n_total) override {
    OrderedJson json = completion_head(head_);
    json["choices"] = OrderedJson::array();
    json["prompt_progress"] = {{"total", n_total}, {"processed", n_done}};
    return event(json);
  }
  void token(int index, const GeneratedToken& token) override {
    told_[static_cast<size_t>(index)].tokens.push_back(token);
  }
  std::string text(int index, std::string_view text) override { return piece(index, text, ""); }
  std::string calls(int /*index*/, std::span<const ToolCall> /*calls*/) override { return ""; }
  std::string ended(int index, const GenerateResult& result, bool /*has_calls*/) override {
    return piece(index, "", name(result.finish_reason));
  }
  std::string end(std::span<const GenerateResult> results) override {
    return (include_usage_ ? event(ending(results)) : "") + kDone;
  }
  std::string failed(const Error& error) override { return event(error_json(error)) + kDone; }

 private:
  static constexpr const char* kDone = "data: [DONE]\n\n";
  // Tokens of an answer since its last piece.
  struct Told {
    std::vector<GeneratedToken> tokens;
    int64_t offset = 0;  // of the first
  };

  std::string piece(int index, std::string_view text, const std::string& finish_reason) {
    Told& told = told_[static_cast<size_t>(index)];
    OrderedJson logprobs;
    if (!told.tokens.empty()) logprobs = logprobs_json(told.tokens, told.offset, tokenizer_);
    told.tokens.clear();
    OrderedJson json = completion_head(head_);
    json["choices"] = OrderedJson::array({choice_json(index, text, std::move(logprobs), finish_reason)});
    return event(json);
  }

  // Everything but the choices.
  OrderedJson ending(std::span<const GenerateResult> results) const {
    int64_t n_prompt = 0, n_completion = 0;
    double n_cached = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      n_completion += std::ssize(results[i].tokens);
      if (i % n_ != 0) continue;  // of the same prompt
      n_prompt += results[i].n_prompt;
      n_cached += results[i].cache.n_loaded();
    }
    OrderedJson json = completion_head(head_);
    json["choices"] = OrderedJson::array();
    json["usage"] = {{"prompt_tokens", n_prompt},
                     {"completion_tokens", n_completion},
                     {"total_tokens", n_prompt + n_completion},
                     {"prompt_tokens_details", {{"cached_tokens", std::llround(n_cached)}}}};
    json["vlcache"] = served_json(results[0], explain_);
    return json;
  }

  AnswerHead head_;
  size_t n_;
  bool include_usage_, explain_;
  const Tokenizer& tokenizer_;
  std::vector<Told> told_;  // by answer
};

}  // namespace

CompletionRequest read_completion_request(std::string_view body, const RequestFields& defaults,
                                          const ChatLimits& limits) {
  OrderedJson json = parse_body(body);
  CompletionRequest request{.prompts = read_prompts(json), .fields = {}};
  refuse_unsupported_completion(json);
  // Here a number requests log probabilities.
  RequestField logprobs = request_field("logprobs");
  logprobs.low = 0;
  logprobs.high = limits.max_logprobs;
  RequestFields own;
  read_field(logprobs, {.object = json, .where = ""}, own);
  json.erase("logprobs");
  json.erase("top_logprobs");
  RequestFields ours = over(own, defaults);
  ours.max_tokens = std::min(ours.max_tokens.value_or(kDefaultTokens), kDefaultTokens);
  request.fields = read_generation_fields(json, ours, limits);
  return request;
}

std::unique_ptr<AnswerStyle> make_completion_style(const AnswerHead& head, const CompletionRequest& asked,
                                                   const Tokenizer& tokenizer) {
  return std::make_unique<CompletionStyle>(head, asked, tokenizer);
}

}  // namespace vlcache
