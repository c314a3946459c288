// RequestFields: what a request may set besides its prompt. One table names every field: flags, lines of `run
// --requests`, HTTP bodies, --help and the table of docs/server/requests.md are made from it.
#pragma once

#include <cfloat>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "model/config.h"

namespace vlcache {

// The seed of random numbers.
struct Seed {
  uint64_t value = 0;
  bool fresh = false;  // -1: each request draws one
};

// A budget of the KV policy as parse_policy takes it; in JSON a number or a string.
struct BudgetText {
  std::string text;
};

// Fields that are not set (std::nullopt; for JSON values null) come from the layer below: see over().
// size: one member for each field of the table.
struct RequestFields {
  std::optional<int32_t> max_tokens, min_tokens, top_k, logprobs, n, priority, min_image_tokens, max_image_tokens,
      score_from, no_repeat_ngram_size;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, image_dedup,
      video_prune;
  std::optional<double> timeout;  // seconds
  std::optional<Seed> seed;
  std::optional<std::vector<std::string>> stop, bad_words;
  std::optional<std::vector<int32_t>> stop_token_ids, allowed_token_ids, suppress_tokens;
  std::optional<std::vector<TokenBias>> logit_bias;
  std::optional<bool> ignore_eos, explain, query_aware, evict_while_prefill, stream, return_progress, cache_prompt,
      pdf_text, image_dedup_weights, reuse_similar, skip_special_tokens, spaces_between_special_tokens,
      include_stop_str_in_output, return_token_ids;
  std::optional<std::string> kv, kv_codec, reuse, cache_salt, score_after;
  std::optional<BudgetText> kv_budget;
  nlohmann::ordered_json response_format;
};

// The member that holds a field; monostate: the field has a reader of its own (tools) and is in the table for its
// description.
using FieldMember =
    std::variant<std::monostate, std::optional<int32_t> RequestFields::*, std::optional<float> RequestFields::*,
                 std::optional<double> RequestFields::*, std::optional<bool> RequestFields::*,
                 std::optional<std::string> RequestFields::*, std::optional<Seed> RequestFields::*,
                 std::optional<BudgetText> RequestFields::*, std::optional<std::vector<std::string>> RequestFields::*,
                 std::optional<std::vector<int32_t>> RequestFields::*,
                 std::optional<std::vector<TokenBias>> RequestFields::*, nlohmann::ordered_json RequestFields::*>;

// The commands that take requests; their defaults differ.
enum class Front : uint8_t { kRun, kServe, kEval };

struct RequestField {
  enum class Body : uint8_t {
    kNowhere,  // not in HTTP bodies
    kOpenAi,   // at the top of chat completions and completions; Anthropic's and Responses' bodies name it otherwise
    kAll,      // at the top of all bodies
    kVlcache,  // in the object "vlcache" of all bodies
  };

  const char* name;  // in lines and bodies
  FieldMember member;
  const char* help;
  const char* flag = "";        // "-n,--max-tokens"; empty: none
  const char* value_name = "";  // of the flag; empty: by its type
  bool line = true;             // in lines of `run --requests`
  Body body = Body::kAll;
  double low = -FLT_MAX, high = FLT_MAX;  // of numbers, both included
  // JSON texts; empty: none. A command without a default of its own has `fallback`.
  const char* fallback = "";
  const char* serve_fallback = "";
  const char* eval_fallback = "";
  bool shares_environment = true;  // its environment variable is the same in all commands
  bool from_checkpoint = false;    // generation_config.json may have another default

  const char* fallback_of(Front front) const;
};

// The table, in the order in which --help shows it.
std::span<const RequestField> request_fields();
// CHECKs that the field exists.
const RequestField& request_field(std::string_view name);

// A JSON object that contains fields.
struct FieldSource {
  const nlohmann::ordered_json& object;
  std::string where;         // before a field's name in errors: "vlcache."
  bool tells_found = false;  // errors also say what was found
};
// Null counts as not set. Throws Error(kInput): "WHEREtop_k: expected an integer from -1 to 2147483647".
void read_field(const RequestField& field, const FieldSource& source, RequestFields& fields);
// Fields of a line of `run --requests`.
RequestFields read_line_fields(const nlohmann::ordered_json& line);
// The meaning of max_tokens 0 (the prompt alone) and -1 (until the context ends) in bodies; nullopt for others.
std::optional<int32_t> unusual_max_tokens(const nlohmann::ordered_json& body, const char* name);
// Fields of the body of a chat completion or completion.
RequestFields read_body_fields(const nlohmann::ordered_json& body);
// Those that the bodies of all endpoints have under the same name.
RequestFields read_common_fields(const nlohmann::ordered_json& body);

// Fields that `fields` does not set come from `below`. A policy and its budget belong together: fields that set one
// take neither from below.
RequestFields over(RequestFields fields, const RequestFields& below);
// The checkpoint's generation_config.json: its penalty and its rules for tokens always, its sampling if do_sample is
// set. Its bad words, which are token ids, RequestBuilder reads.
RequestFields checkpoint_fields(const GenerationDefaults& defaults);
// The table's defaults.
RequestFields fallback_fields(Front front);
// What requests of a command leave out: the flags given, then the checkpoint, then the table.
RequestFields default_fields(const RequestFields& flags, const GenerationDefaults& checkpoint, Front front);
// The same for a loaded checkpoint: where its answers consist of special tokens (engine/answer_text.h), they are shown.
RequestFields defaults_for(const Engine& engine, const RequestFields& flags, Front front);

// Draws a seed if it is fresh. Throws Error(kInput) for values out of range.
GenerateOptions generate_options(const RequestFields& fields);

// The table as it is in docs/server/requests.md.
std::string fields_markdown();

}  // namespace vlcache
