// Fields, shapes.
#include "server/completion.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "io/tokenizer/tokenizer.h"
#include "server/answer.h"
#include "server/json_fields.h"
#include "server/json_reply.h"

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

// What would change the answer, but is not done here.
void refuse_unsupported(const OrderedJson& body) {
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

// Chat completions ask for log probabilities with a flag and a number, these with a number.
void translate_logprobs(OrderedJson& body) {
  const auto logprobs = body.find("logprobs");
  if (logprobs == body.end() || logprobs->is_null()) return;
  if (!logprobs->is_number_unsigned() || logprobs->get<uint64_t>() > 20) {
    bad_field("logprobs: expected an integer from 0 to 20");
  }
  const OrderedJson n = *logprobs;
  body["top_logprobs"] = n;
  body["logprobs"] = true;
}

int64_t n_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

OrderedJson logprobs_json(const GenerateResult& result, const Tokenizer& tokenizer) {
  if (!result.has_logprobs) return nullptr;
  OrderedJson tokens = OrderedJson::array(), logprobs = tokens, tops = tokens, offsets = tokens;
  const auto text_of = [&](int32_t id) { return tokenizer.decode({&id, 1}, /*skip_special_tokens=*/false); };
  int64_t offset = 0;
  for (const GeneratedToken& token : result.tokens) {
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

OrderedJson head_json(const AnswerHead& head) {
  return {{"id", head.id}, {"object", "text_completion"}, {"created", head.created}, {"model", head.model}};
}

OrderedJson choice_json(int index, std::string_view text, OrderedJson logprobs, const std::string& finish_reason) {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)}};
}

OrderedJson piece_json(const AnswerHead& head, int index, std::string_view text, const std::string& finish_reason) {
  OrderedJson json = head_json(head);
  json["choices"] = OrderedJson::array({choice_json(index, text, nullptr, finish_reason)});
  return json;
}

}  // namespace

CompletionRequest read_completion_request(std::string_view body, const ChatRequest& defaults,
                                          const ChatLimits& limits) {
  OrderedJson json = parse_body(body);
  CompletionRequest request{.prompts = read_prompts(json), .fields = {}};
  refuse_unsupported(json);
  translate_logprobs(json);
  ChatRequest ours = defaults;
  ours.options.max_tokens = std::min(ours.options.max_tokens, kDefaultTokens);
  request.fields = read_generation_fields(json, ours, limits);
  return request;
}

CompletionAnswer::CompletionAnswer(AnswerHead head, CompletionRequest asked, HttpReplyPtr reply,
                                   const Tokenizer& tokenizer)
    : head_(std::move(head)), asked_(std::move(asked)), reply_(std::move(reply)), tokenizer_(tokenizer) {}

void CompletionAnswer::begin() {
  if (!asked_.fields.stream) return;
  reply_->begin(
      {.status = 200, .content_type = "text/event-stream", .headers = {{"cache-control", "no-cache"}}, .body = ""},
      /*heartbeat=*/": waiting\n\n");
}

void CompletionAnswer::text(int index, std::string_view text) {
  if (asked_.fields.stream) reply_->write(event(piece_json(head_, index, text, "")));
}

void CompletionAnswer::done(int index, GenerateResult result) {
  if (result.error && !error_) error_ = result.error;
  if (asked_.fields.stream && !result.error) reply_->write(event(piece_json(head_, index, "", result.finish_reason)));
  results_[index] = std::move(result);
  if (results_.size() == n_answers()) finish();
}

OrderedJson CompletionAnswer::usage() const {
  int64_t n_prompt = 0, n_completion = 0;
  double n_cached = 0;
  for (const auto& [index, result] : results_) {
    n_completion += std::ssize(result.tokens);
    if (index % asked_.fields.n != 0) continue;
    n_prompt += result.n_prompt;
    n_cached += result.cache.n_loaded();
  }
  return {{"prompt_tokens", n_prompt},
          {"completion_tokens", n_completion},
          {"total_tokens", n_prompt + n_completion},
          {"prompt_tokens_details", {{"cached_tokens", std::llround(n_cached)}}}};
}

void CompletionAnswer::finish() {
  OrderedJson json = head_json(head_);
  OrderedJson& choices = json["choices"] = OrderedJson::array();
  json["usage"] = usage();
  json["vlcache"] = served_json(results_.begin()->second, asked_.fields.explain);
  if (!asked_.fields.stream) {
    if (error_) return reply_->send(error_response(*error_));
    for (const auto& [index, result] : results_) {
      choices.push_back(choice_json(index, result.text, logprobs_json(result, tokenizer_), result.finish_reason));
    }
    return reply_->send(json_response(json, 200));
  }
  if (error_) {
    reply_->write(event(error_json(*error_)));
  } else if (asked_.fields.include_usage) {
    reply_->write(event(json));
  }
  reply_->write("data: [DONE]\n\n");
  reply_->end();
}

}  // namespace vlcache
