#include "api/request_builder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "api/json_fields.h"
#include "api/kv_codec_choice.h"
#include "base/request_limits.h"
#include "base/sha256.h"
#include "engine/prompt/prompt_media.h"
#include "engine/request.h"
#include "io/chat/chat_templates.h"
#include "io/tokenizer/tokenizer.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr size_t kMaxPolicies = 256;  // that are cached

Sha256Digest salt_of(std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.finish();
}

// The tokens of each word at the beginning of a text and after a space, as vLLM has them: the second only where it is
// one token that begins otherwise. Bounded as stop texts are.
std::vector<std::vector<int32_t>> tokens_of_words(const std::vector<std::string>& words, const Tokenizer& tokenizer) {
  size_t n_bytes = 0;
  for (const std::string& word : words) n_bytes += word.size();
  if (words.size() > kMaxStops || n_bytes > kMaxStopBytes) {
    bad_field("bad_words: expected at most " + std::to_string(kMaxStops) + " texts of " +
              std::to_string(kMaxStopBytes) + " bytes in all, found " + std::to_string(words.size()) + " of " +
              std::to_string(n_bytes));
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const std::string& word : words) {
    const std::string text = word.substr(std::min(word.find_first_not_of(" \t\n"), word.size()));
    if (text.empty()) continue;
    std::vector<int32_t> plain = tokenizer.encode(text, /*add_special_tokens=*/false);
    std::vector<int32_t> spaced = tokenizer.encode(" " + text, /*add_special_tokens=*/false);
    const bool differs = !plain.empty() && spaced.size() == plain.size() && spaced[0] != plain[0];
    tokens.push_back(std::move(plain));
    if (differs) tokens.push_back(std::move(spaced));
  }
  return tokens;
}

}  // namespace

Prompt prepare_chat(const Engine& engine, const nlohmann::ordered_json& messages, InputMedia media,
                    const TemplateInput& more, const PromptLimits& limits) {
  engine.media().check_takes(media);  // before the template of a text model complains of their parts
  return engine.prepare_rendered(engine.chat_templates()->render(messages, engine.tokenizer(), more), std::move(media),
                                 limits);
}

ImageOptions image_options(const RequestFields& fields) {
  ImageOptions options{.min_tokens = fields.min_image_tokens.value_or(0),
                       .max_tokens = fields.max_image_tokens.value_or(0),
                       .settings = "",
                       .dedup = {}};
  if (options.max_tokens > 0 && options.min_tokens > options.max_tokens) {
    bad_field("min_image_tokens: expected at most max_image_tokens");
  }
  const float tolerance = fields.image_dedup.value_or(-1);
  if (!(tolerance <= 1)) bad_field("image_dedup: expected a share from 0 to 1, or -1 (all patches are kept)");
  if (tolerance >= 0)
    options.dedup = CellDedup{.tolerance = tolerance, .weighted = fields.image_dedup_weights.value_or(false)};
  options.video_prune = fields.video_prune.value_or(0);
  if (!(options.video_prune >= 0 && options.video_prune <= 1)) bad_field("video_prune: expected a share from 0 to 1");
  options.compared = fields.reuse_similar.value_or(false);
  return options;
}

RequestBuilder::RequestBuilder(const Engine& engine, const ReuseChoice& reuse, const ModelFiles* model,
                               bool generic_tools)
    : engine_(engine), reuse_(reuse), model_(model), forms_(engine, generic_tools) {}

PolicyPtr RequestBuilder::policy(const RequestFields& fields) {
  const std::string kv = fields.kv.value_or(""), budget = fields.kv_budget.value_or(BudgetText()).text;
  const std::lock_guard lock(mutex_);
  const auto known = policies_.find({kv, budget});
  if (known != policies_.end()) return known->second;
  PolicyPtr policy = parse_policy(kv, budget, model_);
  if (policies_.size() == kMaxPolicies) policies_.clear();
  return policies_[{kv, budget}] = policy;
}

void RequestBuilder::set_eviction(const RequestFields& fields, Prompt& prompt) const {
  prompt.query_aware = fields.query_aware.value_or(true);
  prompt.evict_every = fields.evict_while_prefill.value_or(false) ? engine_.options().prefill_chunk : 0;
}

void RequestBuilder::check_counts(const GenerateOptions& options) const {
  const int64_t vocab = engine_.model().config().text.vocab_size;
  size_t n_bytes = 0;
  for (const std::string& stop : options.stop) n_bytes += stop.size();
  if (options.stop.size() > kMaxStops || n_bytes > kMaxStopBytes) {
    bad_field("stop: expected at most " + std::to_string(kMaxStops) + " texts of " + std::to_string(kMaxStopBytes) +
              " bytes in all, found " + std::to_string(options.stop.size()) + " of " + std::to_string(n_bytes));
  }
  if (std::ssize(options.stop_tokens) > vocab) {
    bad_field("stop_token_ids: expected at most " + std::to_string(vocab) + " tokens, the vocabulary's, found " +
              std::to_string(options.stop_tokens.size()));
  }
  if (std::ssize(options.allowed_tokens) > vocab) {
    bad_field("allowed_token_ids: expected at most " + std::to_string(vocab) + " tokens, the vocabulary's, found " +
              std::to_string(options.allowed_tokens.size()));
  }
  for (const int32_t token : options.allowed_tokens) {
    if (token < vocab) continue;
    bad_field("allowed_token_ids: expected ids of tokens, below " + std::to_string(vocab) + ", found " +
              std::to_string(token));
  }
  if (std::ssize(options.sampling.biases) > vocab) {
    bad_field("logit_bias: expected at most " + std::to_string(vocab) + " tokens, the vocabulary's, found " +
              std::to_string(options.sampling.biases.size()));
  }
  const auto check_id = [&](const char* field, int32_t id) {
    if (id < vocab) return;
    bad_field(std::string(field) + ": expected ids of tokens, below " + std::to_string(vocab) + ", found " +
              std::to_string(id));
  };
  for (const TokenBias& b : options.sampling.biases) check_id("logit_bias", b.token);
  if (std::ssize(options.rules.suppressed) > vocab) {
    bad_field("suppress_tokens: expected at most " + std::to_string(vocab) + " tokens, the vocabulary's, found " +
              std::to_string(options.rules.suppressed.size()));
  }
  for (const int32_t id : options.rules.suppressed) check_id("suppress_tokens", id);
}

GenerateOptions RequestBuilder::options(const RequestFields& fields) const {
  GenerateOptions options = generate_options(fields);
  check_counts(options);
  const GenerationDefaults& checkpoint = engine_.model().config().generation;
  options.rules.suppressed_first = checkpoint.begin_suppress_tokens;
  options.rules.bad_words =
      fields.bad_words ? tokens_of_words(*fields.bad_words, engine_.tokenizer()) : checkpoint.bad_words_ids;
  return options;
}

std::optional<KvCodec> RequestBuilder::named_codec(const RequestFields& fields) const {
  if (!fields.kv_codec) return {};
  try {
    const std::optional<KvCodec> codec = parse_kv_codec(*fields.kv_codec).codec;
    kv_shape_of(engine_.model(), codec.value_or(engine_.auto_codec()));
    return codec;
  } catch (const Error& error) {
    bad_field("kv_codec: " + std::string(error.what()));
  }
}

KvCodec RequestBuilder::kv_codec(const RequestFields& fields, const Policy& policy) const {
  const KvCodec others = fields.kv_codec ? auto_codec(engine_, policy) : default_codec(engine_, policy);
  const KvCodec codec = named_codec(fields).value_or(others);
  check_codec_suits(codec, policy);
  return codec;
}

std::vector<Request> RequestBuilder::requests(Prompt prompt, const RequestFields& fields,
                                              const AnswerForms::Form& form) {
  const GenerateOptions options = this->options(fields);
  const PolicyPtr chosen = policy(fields);
  const KvCodec codec = kv_codec(fields, *chosen);
  const std::string how = fields.reuse.value_or("auto");
  check_reuse(how);
  ReuseOptions reuse = reuse_.options(how, prompt.images.size(), codec);
  reuse.similar = fields.reuse_similar.value_or(false);
  set_eviction(fields, prompt);
  if (fields.cache_salt && !fields.cache_salt->empty()) prompt.salt = salt_of(*fields.cache_salt);
  check_prompt_fits(engine_, *chosen, extent_seen(prompt, *chosen), options.max_tokens);
  const int n = fields.n.value_or(1);
  std::vector<Request> requests(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    request.prompt = i + 1 < n ? prompt.copy() : std::move(prompt);
    request.policy = chosen;
    request.kv_codec = codec;
    request.reuse = reuse;
    request.priority = -fields.priority.value_or(0);  // in fields, lower numbers run first
    request.options = options;
    request.options.sampling.seed += static_cast<uint64_t>(i);
    forms_.apply(form, request);
    request.report_kept = fields.explain.value_or(false) && i == 0;
  }
  return requests;
}

void RequestBuilder::check(const RequestFields& fields) {
  check_options(fields);
  kv_codec(fields, *policy(fields));
  const ImageOptions options = image_options(fields);
  if (options.dedup) check_takes_dedup(engine_.model().config());
  if (options.video_prune > 0) engine_.media().check_takes_videos();
  check_reuse(fields.reuse.value_or("auto"));
  form(read_answer_format(fields.response_format));
}

Request RequestBuilder::request(Prompt prompt, const RequestFields& fields) {
  return std::move(requests(std::move(prompt), fields, form(read_answer_format(fields.response_format))).front());
}

}  // namespace vlcache
