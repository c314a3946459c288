#include <algorithm>
#include <array>
#include <cmath>

#include "api/request_fields.h"
#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

using F = RequestFields;
using Body = RequestField::Body;

constexpr double kMaxInt = INT32_MAX;
constexpr double kMaxLogprobs = 1 << 20;
constexpr double kMaxPriority = 1 << 20;
constexpr double kLongestTimeout = 7 * 24 * 3600;  // seconds

const std::array kFields = std::to_array<RequestField>({
    {.name = "model",
     .member = {},
     .help = "Name of the model; any name is accepted, because a server has one model",
     .value_name = "text",
     .line = false},
    {.name = "max_tokens",
     .member = &F::max_tokens,
     .help = "Maximum number of tokens to generate",
     .flag = "-n,--max-tokens",
     .body = Body::kOpenAi,
     .low = 1,
     .high = kMaxInt,
     .fallback = "256",
     .serve_fallback = "2147483647",  // until the context ends, as clients expect
     .eval_fallback = "64"},
    {.name = "min_tokens",
     .member = &F::min_tokens,
     .help = "Minimum number of tokens to generate: until then, stop tokens and stop texts do not end the answer "
             "(max_tokens and the end of a response_format do)",
     .flag = "--min-tokens",
     .low = 0,
     .high = kMaxInt,
     .fallback = "0"},
    {.name = "temperature",
     .member = &F::temperature,
     .help = "Sampling temperature; 0 always chooses the likeliest token",
     .flag = "--temperature",
     .low = 0,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "top_k",
     .member = &F::top_k,
     .help = "Sample from the k likeliest tokens (0 or -1: from all)",
     .flag = "--top-k",
     .low = -1,
     .high = kMaxInt,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "top_p",
     .member = &F::top_p,
     .help = "Sample from the likeliest tokens whose probabilities add up to this value",
     .flag = "--top-p",
     .low = 0,
     .high = 1,
     .fallback = "1",
     .from_checkpoint = true},
    {.name = "min_p",
     .member = &F::min_p,
     .help = "Drop tokens less likely than this share of the likeliest token's probability",
     .flag = "--min-p",
     .low = 0,
     .high = 1,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "repetition_penalty",
     .member = &F::repetition_penalty,
     .help = "Penalty for tokens of the prompt and the answer: values above 1 make them less likely (1: no penalty)",
     .flag = "--repetition-penalty",
     .low = 0,
     .fallback = "1",
     .from_checkpoint = true},
    {.name = "presence_penalty",
     .member = &F::presence_penalty,
     .help = "Subtract this value from the logits of tokens that the answer already contains",
     .flag = "--presence-penalty",
     .fallback = "0"},
    {.name = "frequency_penalty",
     .member = &F::frequency_penalty,
     .help = "Subtract this value from a token's logit once for each time the answer contains it",
     .flag = "--frequency-penalty",
     .fallback = "0"},
    {.name = "logit_bias",
     .member = &F::logit_bias,
     .help = "Token ids and the value (-100 to 100) added to the logit of each, before penalties",
     .flag = "--logit-bias",
     .value_name = "ID=BIAS"},
    {.name = "seed",
     .member = &F::seed,
     .help = "Seed of random sampling (-1: a new seed for every request)",
     .flag = "--seed",
     .value_name = "INT",
     .fallback = "0",
     .serve_fallback = "-1"},
    {.name = "stop",
     .member = &F::stop,
     .help = "Text that ends the answer and is not part of it (one per use)",
     .flag = "--stop",
     .value_name = "TEXT",
     .body = Body::kOpenAi},
    {.name = "stop_token_ids",
     .member = &F::stop_token_ids,
     .help = "Token id that ends the answer (one per use)",
     .flag = "--stop-token",
     .value_name = "ID"},
    {.name = "include_stop_str_in_output",
     .member = &F::include_stop_str_in_output,
     .help = "Keep the stop text or token in the answer",
     .fallback = "false"},
    {.name = "allowed_token_ids",
     .member = &F::allowed_token_ids,
     .help = "Tokens that may be drawn; without the end of the turn, `max_tokens` ends the answer"},
    {.name = "skip_special_tokens",
     .member = &F::skip_special_tokens,
     .help = "Leave special tokens out of answers (off by default for models whose answers consist of them, such as "
             "docling's). The end of the turn is never shown",
     .flag = "--skip-special-tokens",
     .value_name = "on|off",
     .fallback = "true"},
    {.name = "spaces_between_special_tokens",
     .member = &F::spaces_between_special_tokens,
     .help = "false: no spaces between special tokens (WordPiece vocabularies)",
     .fallback = "true"},
    {.name = "return_token_ids",
     .member = &F::return_token_ids,
     .help = "Add `token_ids` and `prompt_token_ids` to answers, as vLLM does",
     .fallback = "false"},
    {.name = "no_repeat_ngram_size",
     .member = &F::no_repeat_ngram_size,
     .help = "No sequence of so many tokens appears twice in prompt and answer (0: no rule)",
     .low = 0,
     .high = kMaxInt,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "bad_words", .member = &F::bad_words, .help = "Texts that are never generated"},
    {.name = "suppress_tokens", .member = &F::suppress_tokens, .help = "Token ids that are never generated"},
    {.name = "logprobs",
     .member = &F::logprobs,
     .help =
         "Report log probabilities and this many alternatives of each token in JSON answers (-1, the default: none)",
     .flag = "--logprobs",
     .value_name = "N",
     .body = Body::kNowhere,  // chat completions have a switch and a number (top_logprobs), completions a number
     .low = -1,
     .high = kMaxLogprobs},
    {.name = "response_format",
     .member = &F::response_format,
     .help = "JSON schema that the answer must match (default: none)",
     .flag = "--json-schema",
     .value_name = "FILE",
     .body = Body::kOpenAi,
     .shares_environment = false},
    {.name = "reuse",
     .member = &F::reuse,
     .help = "Reuse of images seen before, wherever they stand in the prompt: off; exact (prompt prefixes and "
             "embeddings); auto (KV too, where measurements found that answers stay the same); or KV by a named "
             "method, which selects the image tokens to recompute (r: a share of them, k: the first k of each image): "
             "vlcache[:r=SHARE], static[:r=SHARE], mpic[:k=N], asked[:r=SHARE] (for questions about several images), "
             "cacheblend[:r=SHARE], kvshare[:r=SHARE]",
     .flag = "--reuse",
     .value_name = "HOW",
     .body = Body::kVlcache,
     .fallback = "\"auto\""},
    {.name = "reuse_similar",
     .member = &F::reuse_similar,
     .help = "Let a new image reuse the KV of a near-duplicate; changed regions are recomputed. Has an effect only "
             "where the KV of images is reused",
     .flag = "--reuse-similar",
     .value_name = "on|off",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "explain",
     .member = &F::explain,
     .help = "Report after every answer how much of the prompt and of its images was reused, and why not more",
     .flag = "--explain",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "query_aware",
     .member = &F::query_aware,
     .help = "Whether an evicting policy sees the question. off: it evicts after the last image, before the question, "
             "as for a page that is compressed once and queried often",
     .flag = "--query-aware",
     .body = Body::kVlcache,
     .fallback = "true"},
    {.name = "evict_while_prefill",
     .member = &F::evict_while_prefill,
     .help = "Evict after every chunk of the prompt, so that the full prompt never needs memory; early evictions see "
             "less of the question",
     .flag = "--kv-evict-while-prefill",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "ignore_eos",
     .member = &F::ignore_eos,
     .help = "Continue after the end-of-sequence token",
     .flag = "--ignore-eos",
     .fallback = "false"},
    {.name = "kv",
     .member = &F::kv,
     .help = "KV cache policy: full (keep all), none (recompute every step), static (keep all, in slots reserved up "
             "front), streaming (sinks and a sliding window), or a policy that evicts, such as draft, vl-cache or "
             "snapkv:w=16+pyramid; `vlcache policies` lists all (default: full, or auto if a budget is given)",
     .flag = "--kv,--kv-mode",
     .value_name = "POLICY",
     .body = Body::kVlcache},
    {.name = "kv_budget",
     .member = &F::kv_budget,
     .help = "KV budget of a policy that evicts: a share of the prompt (0.1 or 10%; the default is 0.1), slots per "
             "layer and KV head (200), bytes (512MiB), the share of attention that may be lost (error=0.05), or the "
             "lowest score of a kept slot (threshold=T)",
     .flag = "--kv-budget",
     .value_name = "BUDGET",
     .body = Body::kVlcache},
    {.name = "kv_codec", .member = &F::kv_codec, .help = "As `--kv-codec`, for one request", .body = Body::kVlcache},
    {.name = "n",
     .member = &F::n,
     .help = "Answers per prompt; answer i (from 0) uses seed + i",
     .line = false,
     .body = Body::kOpenAi,
     .low = 1,
     .high = kMaxInt,
     .fallback = "1"},
    {.name = "stream",
     .member = &F::stream,
     .help = "Send the answer as server-sent events while it is generated",
     .line = false,
     .fallback = "false"},
    {.name = "return_progress",
     .member = &F::return_progress,
     .help = "Stream the progress: `prompt_progress` (`total`, `cache`, `processed`, `time_ms`), in tokens, and "
             "`vlcache_progress` (`share`, `seconds_left`), of all work",
     .line = false,
     .body = Body::kOpenAi,
     .fallback = "false"},
    {.name = "priority",
     .member = &F::priority,
     .help = "Scheduling priority: requests with lower numbers are answered first",
     .line = false,
     .low = -kMaxPriority,
     .high = kMaxPriority,
     .fallback = "0"},
    {.name = "timeout",
     .member = &F::timeout,
     .help = "Seconds until the answer must be complete, queueing included, limited by `--request-timeout` (0: no "
             "limit of its own)",
     .line = false,
     .body = Body::kVlcache,
     .low = 0,
     .high = kLongestTimeout,
     .fallback = "0"},
    {.name = "score_from",
     .member = &F::score_from,
     .help = "First token to score in a prompt whose log probabilities are requested: the policy acts before it, and "
             "the rest is computed and scored like an answer; negative values count from the prompt's end. See Scores",
     .line = false,
     .body = Body::kVlcache,
     .low = INT32_MIN,
     .high = INT32_MAX},
    {.name = "score_after",
     .member = &F::score_after,
     .help = "Replaces score_from: scoring starts after the last occurrence of this text (`serve --score-after`)",
     .line = false,
     .body = Body::kVlcache},
    {.name = "cache_salt",
     .member = &F::cache_salt,
     .help = "Requests share cached data only with requests that have the same salt",
     .line = false,
     .fallback = "\"\""},
    {.name = "cache_prompt",
     .member = &F::cache_prompt,
     .help = "false sets `reuse` to `off`, unless `vlcache` sets it",
     .line = false,
     .fallback = "true"},
    {.name = "min_image_tokens",
     .member = &F::min_image_tokens,
     .help = "Minimum number of tokens of an image, or of each pair of video frames (0: no minimum)",
     .flag = "--min-image-tokens",
     .value_name = "N",
     .low = 0,
     .high = kMaxInt,
     .fallback = "0"},
    {.name = "max_image_tokens",
     .member = &F::max_image_tokens,
     .help = "Maximum number of tokens of an image, or of each pair of video frames; larger ones are scaled down "
             "(default: the model's own maximum)",
     .flag = "--max-image-tokens",
     .value_name = "N",
     .low = 1,
     .high = kMaxInt},
    {.name = "image_dedup",
     .member = &F::image_dedup,
     .help = "Drop image patches that look like their neighbours before the encoder, in models that accept images of "
             "any size. The value is the largest difference of a pixel, as a share of its range: 0 drops equal patches "
             "only, 0.02 also patches that differ by up to 2 %, -1 drops none",
     .flag = "--image-dedup",
     .value_name = "SHARE",
     .body = Body::kVlcache,
     .low = -1,
     .high = 1,
     .fallback = "-1"},
    {.name = "image_dedup_weights",
     .member = &F::image_dedup_weights,
     .help = "Weigh a kept patch in attention by the number of patches that it stands for (with image_dedup)",
     .flag = "--image-dedup-weights",
     .value_name = "on|off",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "video_prune",
     .member = &F::video_prune,
     .help = "Share of the patches of all video frames but the first that is dropped before the encoder: the patches "
             "that changed least since the previous frames (0: none)",
     .flag = "--video-prune",
     .value_name = "SHARE",
     .body = Body::kVlcache,
     .low = 0,
     .high = 1,
     .fallback = "0"},
    {.name = "pdf_text",
     .member = &F::pdf_text,
     .help = "Add the text of each PDF page after its image",
     .flag = "--pdf-text",
     .value_name = "on|off",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "mm_processor_kwargs",
     .member = {},
     .help = "Settings of the image processor for this request: `size`, `min_pixels`, `max_pixels`, "
             "`do_image_splitting`, `image_grid_pinpoints`; for videos: `fps`, `max_frames`, `do_sample_frames`",
     .line = false},
    {.name = "chat_template_kwargs",
     .member = {},
     .help = "Additional variables of the chat template, such as `{\"enable_thinking\": false}`",
     .line = false},
    {.name = "reasoning_effort",
     .member = {},
     .help = "Variable of the chat template; `none` turns thinking off. `reasoning` (`effort`, `max_tokens`), "
             "`thinking` and `enable_thinking` are accepted as well; see Thinking",
     .value_name = "text",
     .line = false},
    {.name = "max_thinking_tokens",
     .member = {},
     .help = "Maximum number of tokens of a thought, after which it is closed (also `thinking_budget`, "
             "`thinking.budget_tokens`)",
     .value_name = "integer",
     .line = false},
    {.name = "enable_thinking",
     .member = {},
     .help = "false turns thinking off",
     .value_name = "true, false",
     .line = false},
    {.name = "continue_final_message",
     .member = {},
     .help = "Let the answer continue the last message, which must be the assistant's (also `prefix` in that message)",
     .value_name = "true, false",
     .line = false,
     .body = Body::kOpenAi},
    {.name = "stream_options",
     .member = {},
     .help =
         "`{\"include_usage\": true}` adds the usage to the last event of a stream; `continuous_usage_stats` gives it "
         "in every event",
     .line = false,
     .body = Body::kOpenAi},
    {.name = "tools",
     .member = {},
     .help = "Functions that the model may call; also `tool_choice` and `parallel_tool_calls`. See Tools",
     .value_name = "list of objects",
     .line = false,
     .body = Body::kOpenAi},
});

}  // namespace

const char* RequestField::fallback_of(Front front) const {
  const char* own = front == Front::kServe ? serve_fallback : front == Front::kEval ? eval_fallback : "";
  return *own != '\0' ? own : fallback;
}

std::span<const RequestField> request_fields() { return kFields; }

const RequestField& request_field(std::string_view name) {
  const auto at = std::ranges::find_if(kFields, [&](const RequestField& f) { return f.name == name; });
  CHECK(at != kFields.end());
  return *at;
}

std::string fields_markdown() {
  const auto type_of = [](const RequestField& field) -> std::string {
    return std::visit(
        [&field](auto member) -> std::string {
          using M = decltype(member);
          if constexpr (std::is_same_v<M, std::monostate>) {
            return *field.value_name != '\0' ? field.value_name : "object";
          } else if constexpr (std::is_same_v<M, std::optional<int32_t> F::*> ||
                               std::is_same_v<M, std::optional<Seed> F::*>) {
            return "integer";
          } else if constexpr (std::is_same_v<M, std::optional<float> F::*> ||
                               std::is_same_v<M, std::optional<double> F::*>) {
            return "number";
          } else if constexpr (std::is_same_v<M, std::optional<bool> F::*>) {
            return "true, false";
          } else if constexpr (std::is_same_v<M, std::optional<std::string> F::*>) {
            return "text";
          } else if constexpr (std::is_same_v<M, std::optional<BudgetText> F::*>) {
            return "number or text";
          } else if constexpr (std::is_same_v<M, std::optional<std::vector<std::string>> F::*>) {
            return "text or list of texts";
          } else if constexpr (std::is_same_v<M, std::optional<std::vector<int32_t>> F::*>) {
            return "list of integers";
          } else {
            return "object";
          }
        },
        field.member);
  };
  const auto range_of = [](const RequestField& field) -> std::string {
    const auto text = [](double x) { return format(x == std::floor(x) ? "%.0f" : "%g", x); };
    if (field.low > -FLT_MAX && field.high < FLT_MAX) return ", " + text(field.low) + " to " + text(field.high);
    return field.low > -FLT_MAX ? ", ≥ " + text(field.low) : "";
  };
  const auto default_of = [](const RequestField& field) {
    const std::string run = field.fallback, serve = field.serve_fallback;
    std::string text = run;
    if (!serve.empty()) text += ", `serve` " + (serve == "2147483647" ? "to the end of the context" : serve);
    return text + (field.from_checkpoint ? ", or as the checkpoint says" : "");
  };
  const auto in_bodies = [](const RequestField& field) -> std::string {
    switch (field.body) {
      case Body::kNowhere:
        return "see above";
      case Body::kOpenAi:
        return "OpenAI's";
      case Body::kAll:
        return "all";
      case Body::kVlcache:
        return "all, in `vlcache`";
    }
    return "";
  };
  std::string out = "| field | value | default | in bodies | line | flag | what |\n|---|---|---|---|---|---|---|\n";
  for (const RequestField& field : kFields) {
    const std::string flags = field.flag,
                      flag = flags.substr(flags.find("--") == std::string::npos ? 0 : flags.find("--"));
    out += "| `" + std::string(field.name) + "` | " + type_of(field) + range_of(field) + " | " + default_of(field) +
           " | " + in_bodies(field) + " | " + (field.line ? "yes" : "") + " | " +
           (flag.empty() ? "" : "`" + flag.substr(0, flag.find(',')) + "`") + " | " + field.help + " |\n";
  }
  return out;
}

}  // namespace vlcache
