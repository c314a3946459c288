#include "server/text_routes.h"

#include "api/json_fields.h"
#include "base/error.h"
#include "engine/prompt/prompt_media.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::vector<int32_t> tokens_of_prompt(const Engine& engine, const OrderedJson& json, const EncodeLimits& limits) {
  const auto prompt = json.find("prompt");
  if (prompt == json.end() || !prompt->is_string()) {
    throw Error(ErrorCode::kInput, "prompt: expected a string, or messages as chat completions take them");
  }
  return engine.tokenizer().encode(prompt->get_ref<const std::string&>(), bool_field(json, "add_special_tokens", true),
                                   limits);
}

}  // namespace

OrderedJson tokenize_json(const Engine& engine, std::string_view body,
                          const std::function<std::vector<int32_t>(OrderedJson body)>& of_messages,
                          const EncodeLimits& limits) {
  const OrderedJson json = parse_body(body);
  const bool with_text = bool_field(json, "return_token_strs", false);
  const std::vector<int32_t> tokens =
      json.contains("messages") ? of_messages(json) : tokens_of_prompt(engine, json, limits);
  OrderedJson out{{"count", tokens.size()}, {"max_model_len", engine.max_positions()}, {"tokens", tokens}};
  OrderedJson& strings = out["token_strs"] = nullptr;
  if (!with_text) return out;
  strings = OrderedJson::array();
  for (const int32_t token : tokens) strings.push_back(engine.tokenizer().token_text(token));
  return out;
}

OrderedJson detokenize_json(const Engine& engine, std::string_view body) {
  const OrderedJson json = parse_body(body);
  const auto tokens = json.find("tokens");
  if (tokens == json.end() || !tokens->is_array()) throw Error(ErrorCode::kInput, "tokens: expected a list of ids");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const OrderedJson& id = (*tokens)[i];
    const bool good = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX &&
                      engine.tokenizer().has_token(id.get<int32_t>());
    if (!good) throw Error(ErrorCode::kInput, "tokens[" + std::to_string(i) + "]: expected the id of a token");
    ids.push_back(id.get<int32_t>());
  }
  return {{"prompt", engine.tokenizer().decode(ids, /*skip_special_tokens=*/false)}};
}

OrderedJson props_json(const Engine& engine, const std::string& model_name, const GenerateOptions& defaults,
                       int n_parallel) {
  const SamplingParams& s = defaults.sampling;
  OrderedJson params{{"temperature", s.temperature},
                     {"top_k", s.top_k},
                     {"top_p", s.top_p},
                     {"min_p", s.min_p},
                     {"presence_penalty", s.presence_penalty},
                     {"frequency_penalty", s.frequency_penalty},
                     {"repeat_penalty", s.repetition_penalty},
                     {"n_predict", defaults.max_tokens == INT32_MAX ? -1 : defaults.max_tokens}};
  return {{"default_generation_settings", {{"n_ctx", engine.max_positions()}, {"params", std::move(params)}}},
          {"total_slots", n_parallel},
          {"model_alias", model_name},
          {"modalities",
           {{"vision", engine.model().sees_images()}, {"video", engine.media().takes_videos()}, {"audio", false}}}};
}

}  // namespace vlcache
