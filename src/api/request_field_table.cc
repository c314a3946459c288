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
    {.name = "model", .member = {}, .help = "any name: a server has one model", .value_name = "text", .line = false},
    {.name = "max_tokens",
     .member = &F::max_tokens,
     .help = "tokens to generate at most",
     .flag = "-n,--max-tokens",
     .body = Body::kOpenAi,
     .low = 1,
     .high = kMaxInt,
     .fallback = "256",
     .serve_fallback = "2147483647",  // until the context ends, as clients expect
     .eval_fallback = "64"},
    {.name = "min_tokens",
     .member = &F::min_tokens,
     .help = "tokens before which the answer does not end, neither by a stop token nor by a stop text; max_tokens and "
             "the end of a response_format come first",
     .flag = "--min-tokens",
     .low = 0,
     .high = kMaxInt,
     .fallback = "0"},
    {.name = "temperature",
     .member = &F::temperature,
     .help = "0: always the likeliest token (default: as the checkpoint says, else 0)",
     .flag = "--temperature",
     .low = 0,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "top_k",
     .member = &F::top_k,
     .help = "choose among the k likeliest (0 or -1: all)",
     .flag = "--top-k",
     .low = -1,
     .high = kMaxInt,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "top_p",
     .member = &F::top_p,
     .help = "choose among the likeliest that make up this mass",
     .flag = "--top-p",
     .low = 0,
     .high = 1,
     .fallback = "1",
     .from_checkpoint = true},
    {.name = "min_p",
     .member = &F::min_p,
     .help = "drop tokens less likely than this share of the likeliest",
     .flag = "--min-p",
     .low = 0,
     .high = 1,
     .fallback = "0",
     .from_checkpoint = true},
    {.name = "repetition_penalty",
     .member = &F::repetition_penalty,
     .help = "> 1 makes tokens of prompt and answer less likely",
     .flag = "--repetition-penalty",
     .low = 0,
     .fallback = "1",
     .from_checkpoint = true},
    {.name = "presence_penalty",
     .member = &F::presence_penalty,
     .help = "subtracted from the logits of tokens already generated",
     .flag = "--presence-penalty",
     .fallback = "0"},
    {.name = "frequency_penalty",
     .member = &F::frequency_penalty,
     .help = "the same, once per time",
     .flag = "--frequency-penalty",
     .fallback = "0"},
    {.name = "logit_bias",
     .member = &F::logit_bias,
     .help = "token ids and what is added to their logits, -100 to 100, before penalties",
     .flag = "--logit-bias",
     .value_name = "ID=BIAS"},
    {.name = "seed",
     .member = &F::seed,
     .help = "of the random choices (-1: a fresh one for every request)",
     .flag = "--seed",
     .value_name = "INT",
     .fallback = "0",
     .serve_fallback = "-1"},
    {.name = "stop",
     .member = &F::stop,
     .help = "end the answer before this text (one per use)",
     .flag = "--stop",
     .value_name = "TEXT",
     .body = Body::kOpenAi},
    {.name = "stop_token_ids",
     .member = &F::stop_token_ids,
     .help = "end the answer at this token id (one per use)",
     .flag = "--stop-token",
     .value_name = "ID"},
    {.name = "logprobs",
     .member = &F::logprobs,
     .help = "report log probabilities and this many alternatives (in JSON answers)",
     .flag = "--logprobs",
     .value_name = "N",
     .body = Body::kNowhere,  // chat completions have a switch and a number (top_logprobs), completions a number
     .low = -1,
     .high = kMaxLogprobs},
    {.name = "response_format",
     .member = &F::response_format,
     .help = "a JSON schema that answers keep to",
     .flag = "--json-schema",
     .value_name = "FILE",
     .body = Body::kOpenAi,
     .shares_environment = false},
    {.name = "reuse",
     .member = &F::reuse,
     .help =
         "of pictures that were there before, wherever they stand: exact (their embeddings), off, or also their KV, "
         "of which a chooser selects the tokens to recompute: vlcache[:r=SHARE], static[:r=SHARE], mpic[:k=N], "
         "asked[:r=SHARE] (for questions about several pictures), cacheblend[:r=SHARE], kvshare[:r=SHARE]; auto: "
         "by the plan of `tune reuse`, where that has held, else exact",
     .flag = "--reuse",
     .value_name = "HOW",
     .body = Body::kVlcache,
     .fallback = "\"auto\""},
    {.name = "reuse_similar",
     .member = &F::reuse_similar,
     .help =
         "where KV of images is reused: an image that was never there takes that of one which looks the same for the "
         "most part; where the two differ, and around, it is recomputed",
     .flag = "--reuse-similar",
     .value_name = "on|off",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "explain",
     .member = &F::explain,
     .help = "report after every answer what was reused, and why not more",
     .flag = "--explain",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "query_aware",
     .member = &F::query_aware,
     .help = "off: a policy that evicts acts after the last image, before it has seen the question, as for a page "
             "that is compressed once and asked often",
     .flag = "--query-aware",
     .body = Body::kVlcache,
     .fallback = "true"},
    {.name = "evict_while_prefill",
     .member = &F::evict_while_prefill,
     .help = "evict chunk by chunk, so that the prompt's KV is never held as a whole; what goes early is judged by "
             "fewer questions",
     .flag = "--kv-evict-while-prefill",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "ignore_eos",
     .member = &F::ignore_eos,
     .help = "go on after the end-of-sequence token",
     .flag = "--ignore-eos",
     .fallback = "false"},
    {.name = "kv",
     .member = &F::kv,
     .help = "how KV is kept: full, none, static, streaming, or a policy that evicts, such as vlcache, pointer or "
             "snapkv:w=16+pyramid; `vlcache policies` lists all (default: full, or auto with a budget)",
     .flag = "--kv,--kv-mode",
     .value_name = "POLICY",
     .body = Body::kVlcache},
    {.name = "kv_budget",
     .member = &F::kv_budget,
     .help = "what a policy that evicts may keep: a share of the prompt (0.1 or 10%, the default), slots per layer and "
             "kv head (200), bytes (512MiB), lost attention mass (error=0.05), or what scores at least threshold=T",
     .flag = "--kv-budget",
     .value_name = "BUDGET",
     .body = Body::kVlcache},
    {.name = "n",
     .member = &F::n,
     .help = "answers to one prompt; each has the seed before it and one more",
     .line = false,
     .body = Body::kOpenAi,
     .low = 1,
     .high = kMaxInt,
     .fallback = "1"},
    {.name = "stream", .member = &F::stream, .help = "send the answer as it comes", .line = false, .fallback = "false"},
    {.name = "return_progress",
     .member = &F::return_progress,
     .help = "in a stream, how much of the prompt is computed: `\"prompt_progress\": {\"total\", \"processed\"}`",
     .line = false,
     .body = Body::kOpenAi,
     .fallback = "false"},
    {.name = "priority",
     .member = &F::priority,
     .help = "lower numbers are answered first",
     .line = false,
     .low = -kMaxPriority,
     .high = kMaxPriority,
     .fallback = "0"},
    {.name = "timeout",
     .member = &F::timeout,
     .help = "seconds until the answer must be complete, waiting included (`--request-timeout` at most; 0: none)",
     .line = false,
     .body = Body::kVlcache,
     .low = 0,
     .high = kLongestTimeout,
     .fallback = "0"},
    {.name = "score_from",
     .member = &F::score_from,
     .help = "of a prompt whose log probabilities are asked for: the policy acts before this token, and the rest is "
             "computed and judged as an answer is; negative: counted from the prompt's end. See Scores",
     .line = false,
     .body = Body::kVlcache,
     .low = INT32_MIN,
     .high = INT32_MAX},
    {.name = "score_after",
     .member = &F::score_after,
     .help = "instead: from the token on that follows the last place of this text (`serve --score-after`)",
     .line = false,
     .body = Body::kVlcache},
    {.name = "cache_salt",
     .member = &F::cache_salt,
     .help = "only requests with the same one share anything that is kept",
     .line = false,
     .fallback = "\"\""},
    {.name = "cache_prompt",
     .member = &F::cache_prompt,
     .help = "false: `reuse` `off`, unless `vlcache` says how",
     .line = false,
     .body = Body::kOpenAi,
     .fallback = "true"},
    {.name = "min_image_tokens",
     .member = &F::min_image_tokens,
     .help = "tokens of an image, or of each pair of a video's frames, at least (0: no bound)",
     .flag = "--min-image-tokens",
     .value_name = "N",
     .low = 0,
     .high = kMaxInt,
     .fallback = "0"},
    {.name = "max_image_tokens",
     .member = &F::max_image_tokens,
     .help = "tokens of an image, or of each pair of a video's frames, at most: larger ones are scaled down",
     .flag = "--max-image-tokens",
     .value_name = "N",
     .low = 1,
     .high = kMaxInt},
    {.name = "image_dedup",
     .member = &F::image_dedup,
     .help = "of images of any size: leave out patches that look like their neighbours, before the encoder. 0: only "
             "those that are equal; 0.02: also those of which no pixel differs by more than 2 % of its range; -1: keep "
             "all",
     .flag = "--image-dedup",
     .value_name = "SHARE",
     .body = Body::kVlcache,
     .low = -1,
     .high = 1,
     .fallback = "-1"},
    {.name = "image_dedup_weights",
     .member = &F::image_dedup_weights,
     .help = "with image_dedup: a patch counts in attention as often as patches look like it",
     .flag = "--image-dedup-weights",
     .value_name = "on|off",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "video_prune",
     .member = &F::video_prune,
     .help = "of videos: leave out, before the encoder, this share of the patches of all frames but the first: those "
             "that changed least since the frames before. 0: keep all",
     .flag = "--video-prune",
     .value_name = "SHARE",
     .body = Body::kVlcache,
     .low = 0,
     .high = 1,
     .fallback = "0"},
    {.name = "pdf_text",
     .member = &F::pdf_text,
     .help = "of PDFs: the text of each page, too, after its image",
     .flag = "--pdf-text",
     .value_name = "on|off",
     .body = Body::kVlcache,
     .fallback = "false"},
    {.name = "mm_processor_kwargs",
     .member = {},
     .help = "settings of the image processor for this request: `size`, `min_pixels`, `max_pixels`, "
             "`do_image_splitting`, `image_grid_pinpoints`; of videos: `fps`, `max_frames`, `do_sample_frames`",
     .line = false},
    {.name = "chat_template_kwargs",
     .member = {},
     .help = "further variables of the chat template, such as `{\"enable_thinking\": false}`",
     .line = false},
    {.name = "reasoning_effort",
     .member = {},
     .help = "a variable of the chat template; `none`: without thinking. `reasoning` (`effort`, `max_tokens`), "
             "`thinking` and `enable_thinking` are taken, too; see Thinking",
     .value_name = "text",
     .line = false},
    {.name = "max_thinking_tokens",
     .member = {},
     .help = "tokens of a thought, after which it is closed (also `thinking_budget`, `thinking.budget_tokens`)",
     .value_name = "integer",
     .line = false},
    {.name = "enable_thinking",
     .member = {},
     .help = "false: without thinking",
     .value_name = "true, false",
     .line = false},
    {.name = "continue_final_message",
     .member = {},
     .help = "the answer goes on with the last message, an assistant's (also `prefix` in that message)",
     .value_name = "true, false",
     .line = false,
     .body = Body::kOpenAi},
    {.name = "stream_options",
     .member = {},
     .help = "`{\"include_usage\": true}`: the last event of a stream has the usage",
     .line = false,
     .body = Body::kOpenAi},
    {.name = "tools",
     .member = {},
     .help = "functions that the model may call, with `tool_choice` and `parallel_tool_calls`; see Tools",
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
