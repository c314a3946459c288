#include "server/protocol/completion.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/json_fields.h"
#include "api/peer_fields.h"
#include "api/result_json.h"
#include "base/json.h"
#include "base/request_limits.h"
#include "io/tokenizer/tokenizer.h"
#include "server/http/json_reply.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

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

int64_t n_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

// Of tokens whose text begins at `offset`, in characters; moves `offset` to its end. The log probabilities of the first
// `n_unknown` are null.
OrderedJson logprobs_json(std::span<const GeneratedToken> told, int64_t& offset, const Tokenizer& tokenizer,
                          size_t n_unknown = 0) {
  OrderedJson tokens = OrderedJson::array(), logprobs = tokens, tops = tokens, offsets = tokens;
  const auto text_of = [&](int32_t id) { return tokenizer.decode({&id, 1}, /*skip_special_tokens=*/false); };
  for (const GeneratedToken& token : told) {
    const std::string text = text_of(token.id);
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& other : token.top) top[text_of(other.token)] = other.logprob;
    tokens.push_back(text);
    const bool unknown = tokens.size() <= n_unknown;
    logprobs.push_back(unknown ? OrderedJson() : OrderedJson(token.logprob));
    tops.push_back(unknown ? OrderedJson() : std::move(top));
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
  CompletionStyle(const AnswerHead& head, const CompletionRequest& asked, std::vector<CompletionPrompt> prompts,
                  const Tokenizer& tokenizer)
      : head_(head),
        echo_(asked.echo),
        wants_logprobs_(asked.fields.has_logprobs()),
        wants_ids_(asked.fields.returns_token_ids()),
        wants_prompt_logprobs_(asked.n_prompt_logprobs.has_value()),
        prompts_(std::move(prompts)),
        n_(static_cast<size_t>(asked.fields.n())),
        include_usage_(asked.fields.include_usage),
        continuous_usage_(asked.fields.continuous_usage),
        explain_(asked.fields.explain()),
        tokenizer_(tokenizer),
        told_(asked.n_answers()) {}

  OrderedJson whole(std::span<const GenerateResult> results) override {
    OrderedJson json = ending(results);
    for (size_t i = 0; i < results.size(); ++i) {
      const GenerateResult& r = results[i];
      const CompletionPrompt& prompt = prompts_[i / n_];
      int64_t offset = 0;
      OrderedJson logprobs;
      if (wants_logprobs_) {
        std::vector<GeneratedToken> tokens;
        size_t n_unknown = 0;
        if (echo_) tokens = prompt_tokens(prompt, n_unknown);
        tokens.insert(tokens.end(), r.tokens.begin(), r.tokens.end());
        logprobs = logprobs_json(tokens, offset, tokenizer_, n_unknown);
      }
      json["choices"].push_back(choice_json(static_cast<int>(i), (echo_ ? prompt.text : "") + r.text,
                                            std::move(logprobs), name(r.finish_reason)));
      OrderedJson& choice = json["choices"].back();
      if (wants_prompt_logprobs_) choice["prompt_logprobs"] = prompt_logprobs_json(prompt);
      if (!wants_ids_) continue;
      choice["token_ids"] = token_ids_json(r.tokens);
      choice["prompt_token_ids"] = prompt.tokens;
    }
    return json;
  }
  std::string begin() override { return ""; }
  std::string progress(const PromptProgress& progress) override {
    OrderedJson json = completion_head(head_);
    json["choices"] = OrderedJson::array();
    add_progress(json, progress);
    return event_of(0, std::move(json));
  }
  void token(int index, const GeneratedToken& token) override {
    Told& told = told_[static_cast<size_t>(index)];
    ++told.n_all;
    if (wants_logprobs_ || wants_ids_) told.tokens.push_back(token);
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
    int64_t offset = 0;                       // where the text of the first begins
    bool echoed = false, has_prompt = false;  // its text, its token ids
    int64_t n_all = 0;                        // tokens of the answer, if usage is reported as it grows
  };

  // Those at the beginning that are not scored are `n_unknown`.
  static std::vector<GeneratedToken> prompt_tokens(const CompletionPrompt& prompt, size_t& n_unknown) {
    std::vector<GeneratedToken> tokens;
    n_unknown = 0;
    if (prompt.scores == nullptr) return tokens;
    for (const PromptScores::Score& score : prompt.scores->scores()) {
      if (score.rank == 0 && n_unknown == tokens.size()) ++n_unknown;
      tokens.push_back(score.token);
    }
    return tokens;
  }
  // As vLLM has it: an object by token id for each token, null for those that are not scored.
  OrderedJson prompt_logprobs_json(const CompletionPrompt& prompt) const {
    OrderedJson list = OrderedJson::array();
    for (const PromptScores::Score& score : prompt.scores->scores()) {
      if (score.rank == 0) {
        list.push_back(nullptr);
        continue;
      }
      OrderedJson tokens = OrderedJson::object();
      const auto add = [&](int32_t id, float logprob, int32_t rank) {
        tokens[std::to_string(id)] = {{"logprob", logprob},
                                      {"rank", rank},
                                      {"decoded_token", tokenizer_.decode({&id, 1}, /*skip_special_tokens=*/false)}};
      };
      add(score.token.id, score.token.logprob, score.rank);
      int32_t rank = 0;
      for (const TokenLogprob& top : score.token.top) {
        ++rank;
        if (top.token != score.token.id) add(top.token, top.logprob, rank);
      }
      list.push_back(std::move(tokens));
    }
    return list;
  }

  // With usage, as far as the request asks for it: that of the answer so far, or null in all events but the last.
  std::string event_of(int index, OrderedJson json) const {
    const auto i = static_cast<size_t>(index);
    if (continuous_usage_) {
      json["usage"] = running_usage_json(std::ssize(prompts_[i / n_].tokens), told_[i].n_all);
    } else if (include_usage_) {
      json["usage"] = nullptr;
    }
    return event(json);
  }

  // The prompt, before the first piece of an answer that repeats it.
  std::string echoed(int index) {
    Told& told = told_[static_cast<size_t>(index)];
    if (!echo_ || std::exchange(told.echoed, true)) return "";
    const CompletionPrompt& prompt = prompts_[static_cast<size_t>(index) / n_];
    OrderedJson logprobs;
    size_t n_unknown = 0;
    if (wants_logprobs_) {
      const std::vector<GeneratedToken> tokens = prompt_tokens(prompt, n_unknown);
      logprobs = logprobs_json(tokens, told.offset, tokenizer_, n_unknown);
    }
    OrderedJson json = completion_head(head_);
    json["choices"] = OrderedJson::array({choice_json(index, prompt.text, std::move(logprobs), "")});
    return event_of(index, std::move(json));
  }

  std::string piece(int index, std::string_view text, const std::string& finish_reason) {
    const std::string before = echoed(index);
    Told& told = told_[static_cast<size_t>(index)];
    OrderedJson logprobs;
    if (!told.tokens.empty() && wants_logprobs_) logprobs = logprobs_json(told.tokens, told.offset, tokenizer_);
    OrderedJson choice = choice_json(index, text, std::move(logprobs), finish_reason);
    if (wants_ids_) {
      choice["token_ids"] = token_ids_json(told.tokens);
      if (!std::exchange(told.has_prompt, true)) {
        choice["prompt_token_ids"] = prompts_[static_cast<size_t>(index) / n_].tokens;
      }
    }
    told.tokens.clear();
    OrderedJson json = completion_head(head_);
    json["choices"] = OrderedJson::array({std::move(choice)});
    return before + event_of(index, std::move(json));
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
  bool echo_, wants_logprobs_, wants_ids_, wants_prompt_logprobs_;
  std::vector<CompletionPrompt> prompts_;
  size_t n_;
  bool include_usage_, continuous_usage_, explain_;
  const Tokenizer& tokenizer_;
  std::vector<Told> told_;  // by answer
};

}  // namespace

CompletionRequest read_completion_request(std::string_view body, const RequestFields& defaults,
                                          const ChatLimits& limits) {
  OrderedJson json = parse_body(body);
  CompletionRequest request{.prompts = read_prompts(json), .fields = {}};
  check_peer_fields(json, PeerEndpoint::kCompletions);
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
  request.echo = bool_field(json, "echo", false);
  json.erase("echo");
  request.add_special_tokens = bool_field(json, "add_special_tokens", true);
  RequestField of_prompt = logprobs;
  of_prompt.name = "prompt_logprobs";
  RequestFields asked;
  read_field(of_prompt, {.object = json, .where = ""}, asked);
  request.n_prompt_logprobs = asked.logprobs;
  request.fields = read_generation_fields(json, ours, limits);
  if (request.n_prompt_logprobs && request.fields.stream()) bad_field("prompt_logprobs: not together with stream");
  return request;
}

std::optional<size_t> first_scored(const CompletionPrompt& prompt, const RequestFields& fields,
                                   const Tokenizer& tokenizer) {
  const std::vector<int32_t>& tokens = prompt.tokens;
  if (fields.score_from) {
    const int64_t at = *fields.score_from + (*fields.score_from < 0 ? std::ssize(tokens) : 0);
    return static_cast<size_t>(std::clamp<int64_t>(at, 1, std::ssize(tokens)));
  }
  if (!fields.score_after || fields.score_after->empty()) return std::nullopt;
  const auto text_of = [&](size_t n) {
    return tokenizer.decode(std::span(tokens).first(n), /*skip_special_tokens=*/false);
  };
  const std::string text = text_of(tokens.size());
  const size_t found = text.rfind(*fields.score_after);
  if (found == std::string::npos) {
    bad_field("vlcache.score_after: the prompt does not have this text: " + *fields.score_after);
  }
  // The fewest tokens that hold the text: one that goes on beyond it still belongs to what comes before.
  const size_t end = found + fields.score_after->size();
  size_t low = 1, high = tokens.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    text_of(middle).size() < end ? low = middle + 1 : high = middle;
  }
  return low;
}

std::unique_ptr<AnswerStyle> make_completion_style(const AnswerHead& head, const CompletionRequest& asked,
                                                   std::vector<CompletionPrompt> prompts, const Tokenizer& tokenizer) {
  return std::make_unique<CompletionStyle>(head, asked, std::move(prompts), tokenizer);
}

}  // namespace vlcache
