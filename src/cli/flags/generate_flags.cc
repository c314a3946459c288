#include "cli/flags/generate_flags.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <set>
#include <span>
#include <type_traits>
#include <utility>

#include "api/result_json.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/flags/codec_flags.h"
#include "engine/answer_text.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kKvGroup = "Compression and reuse";

// A field given as text: a number as JSON, ID=BIAS, a file with a schema, on or off.
OrderedJson json_of_text(const RequestField& field, const std::string& text) {
  if (std::holds_alternative<OrderedJson RequestFields::*>(field.member)) {  // response_format
    return {{"type", "json_schema"}, {"json_schema", {{"schema", parse_ordered_json(read_text_file(text), text)}}}};
  }
  if (std::holds_alternative<std::optional<bool> RequestFields::*>(field.member)) return text == "on";
  const OrderedJson number = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : OrderedJson(text);
}

void read_text(const RequestField& field, OrderedJson value, RequestFields& fields) {
  const OrderedJson object{{field.name, std::move(value)}};
  read_field(field, {.object = object, .where = ""}, fields);
}

// A flag without a value; other fields that are on or off accept these words.
bool is_switch(const RequestField& field) {
  return field.fallback == std::string_view("false") && *field.value_name == '\0';
}

// {"ID": BIAS, ...}
OrderedJson biases_of(const std::vector<std::string>& texts) {
  OrderedJson biases = OrderedJson::object();
  for (const std::string& text : texts) {
    const size_t at = std::min(text.find('='), text.size());
    const std::string bias = text.substr(std::min(at + 1, text.size()));
    biases[text.substr(0, at)] = OrderedJson::parse(bias, nullptr, /*allow_exceptions=*/false);
  }
  return biases;
}

// The fault of a flag's text; "": none.
std::string problem_of(const RequestField& field, const OrderedJson& value) {
  try {
    RequestFields fields;
    read_text(field, value, fields);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// The default in --help; "": the help says it.
std::string default_text(const RequestField& field, Front front, bool is_list) {
  const std::string fallback = field.fallback_of(front);
  if (field.from_checkpoint) return "from the checkpoint, else " + fallback;
  if (fallback == std::to_string(INT_MAX)) return "to the end of the context";
  if (fallback == "true") return "on";
  if (fallback == "false") return "off";
  if (fallback.starts_with('"')) return fallback.substr(1, fallback.size() - 2);
  return fallback.empty() && is_list ? "none" : fallback;
}

// The heading in --help.
std::string group_of(std::string_view field) {
  constexpr std::string_view kBasic[] = {"max_tokens", "temperature", "pdf_text", "min_image_tokens",
                                         "max_image_tokens"};
  constexpr std::string_view kAnswer[] = {"min_tokens",      "stop",       "stop_token_ids",     "logprobs",
                                          "response_format", "ignore_eos", "skip_special_tokens"};
  constexpr std::string_view kKv[] = {"reuse",
                                      "explain",
                                      "query_aware",
                                      "kv_evict_while_prefill",
                                      "evict_while_prefill",
                                      "image_dedup",
                                      "image_dedup_weights",
                                      "video_prune",
                                      "reuse_similar"};
  const auto is_in = [&](const auto& names) { return std::ranges::find(names, field) != std::end(names); };
  return is_in(kBasic) ? "Basic" : is_in(kAnswer) ? "Answer" : is_in(kKv) ? kKvGroup : "Sampling";
}

}  // namespace

Flag FieldFlags::add(const Command& command, const RequestField& field, Front front) {
  const auto add_typed = [&](auto member) {
    using Member = decltype(member);
    constexpr bool kInteger = std::is_same_v<Member, std::optional<int32_t> RequestFields::*>;
    if constexpr (kInteger || std::is_same_v<Member, std::optional<float> RequestFields::*>) {
      Flag flag = command.add(field.flag, given_.*member, field.help);
      if constexpr (kInteger) flag.range(static_cast<int64_t>(field.low), static_cast<int64_t>(field.high));
      return flag;
    } else if constexpr (std::is_same_v<Member, std::optional<std::string> RequestFields::*> ||
                         std::is_same_v<Member, std::optional<std::vector<std::string>> RequestFields::*> ||
                         std::is_same_v<Member, std::optional<std::vector<int32_t>> RequestFields::*>) {
      return command.add(field.flag, given_.*member, field.help);
    } else if constexpr (std::is_same_v<Member, std::optional<bool> RequestFields::*>) {
      if (is_switch(field)) return command.add(field.flag, given_.*member, field.help);
      return command.add(field.flag, texts_[&field], field.help).one_of({"on", "off"});
    } else if constexpr (std::is_same_v<Member, std::optional<std::vector<TokenBias>> RequestFields::*>) {
      return command.add(field.flag, lists_[&field], field.help).check([&field](const std::string& text) {
        return problem_of(field, biases_of({text}));
      });
    } else {
      const Flag flag = command.add(field.flag, texts_[&field], field.help);
      if constexpr (std::is_same_v<Member, std::optional<Seed> RequestFields::*>) {
        flag.check([&field](const std::string& text) { return problem_of(field, json_of_text(field, text)); });
      }
      return flag;
    }
  };
  const Flag flag = std::visit(add_typed, field.member);
  const bool is_list = std::holds_alternative<std::optional<std::vector<std::string>> RequestFields::*>(field.member) ||
                       std::holds_alternative<std::optional<std::vector<int32_t>> RequestFields::*>(field.member) ||
                       std::holds_alternative<std::optional<std::vector<TokenBias>> RequestFields::*>(field.member);
  if (is_list) flag.one_per_use();
  if (*field.value_name != '\0') flag.value_name(field.value_name);
  const std::string text = default_text(field, front, is_list);
  if (!text.empty() && !is_switch(field)) flag.default_text(text);
  return flag;
}

RequestFields FieldFlags::fields() const {
  RequestFields fields = given_;
  for (const auto& [field, text] : texts_) {
    if (!text.empty()) read_text(*field, json_of_text(*field, text), fields);
  }
  for (const auto& [field, texts] : lists_) {
    if (!texts.empty()) read_text(*field, biases_of(texts), fields);
  }
  return fields;
}

void add_generate_flags(const Command& command, GenerateFlags& flags, Front front) {
  for (const RequestField& field : request_fields()) {
    const bool has_flag = *field.flag != '\0', is_policy = std::string_view(field.name).starts_with("kv");
    const bool is_for_prompts = std::string_view(field.name) == "pdf_text";  // which eval has from its data
    if (!has_flag || is_policy || (is_for_prompts && front == Front::kEval)) continue;
    const Flag flag = flags.request.add(command, field, front).group(group_of(field.name));
    if (field.shares_environment) flag.share_environment();
  }
  const auto add = [&](const char* names, auto& value, const char* help) {
    return command.add(names, value, help).group(kKvGroup).share_environment();
  };
  add("--reuse-plan", flags.reuse.plan,
      "Plan of `tune reuse` that --reuse auto follows (default: reuse_plan.json in the model's folder, if it is there)")
      .value_name("FILE");
  add("--reuse-origin", flags.reuse.origin,
      "Where the KV of an image that later prompts reuse is computed: in the first prompt that computes it exactly "
      "(first), or always in a prompt of its own, so that answers do not depend on earlier requests (neutral)")
      .one_of({"first", "neutral"})
      .show_default();
  add("--reuse-margin", flags.reuse.margin,
      "Tolerated share of changed answers (or lost right answers) under --reuse auto, above numerical noise; compared "
      "with the upper 95 % bound of the measurement")
      .range(0.0001, 1.0)
      .show_default();
  if (front == Front::kServe) {
    add("--reuse-shadow", flags.reuse.shadow,
        "Share of requests that --reuse auto computes a second time while the machine is idle, to compare answers with "
        "and without reuse; until it has decided, it compares every request. 0: none")
        .range(0.0, 1.0)
        .show_default();
  }
  add("--reuse-bound", flags.reuse.former_bound, "").group("");  // hidden
  add("--cache-exact", flags.reuse.keep_exact,
      "Cache a prompt's KV for later prompts as computed, even if a policy compresses it for this one");
}

RequestFields given_fields(const GenerateFlags& flags, const ModelFlags& model) {
  RequestFields given = flags.request.fields();
  if (!model.kv.empty()) given.kv = model.kv;
  if (!model.kv_budget.empty()) given.kv_budget = BudgetText{model.kv_budget};
  return given;
}

ReuseChoice reuse_choice(const GenerateFlags& flags, const RequestFields& given, const ModelFlags& model,
                         const Checkpoint& checkpoint) {
  ReuseFlags reuse = flags.reuse;
  if (!reuse.former_bound.empty()) {
    throw Error(ErrorCode::kInput,
                "--reuse-bound is replaced by --reuse-margin: 0.01 lets reuse change 1 % of the answers, as "
                "--reuse-bound 0.99 did");
  }
  reuse.how = given.reuse.value_or(reuse.how);
  return ReuseChoice(reuse, checkpoint, image_form(model.cache), [&] { return answering_form(model, checkpoint); });
}

AnsweringForm answering_form(const ModelFlags& flags, const Checkpoint& checkpoint) {
  return {.weights = weights_form(flags, checkpoint),
          .values = value_codec(compute_dtype(flags, checkpoint)),
          .kv_codec = default_codec(flags, checkpoint)};
}

std::string special_tokens_text(const Engine& engine, const RequestFields& given) {
  const std::string tokens = answer_token_list(answer_tokens(engine));
  if (tokens.empty() || given.skip_special_tokens) return "";
  return "answers of this model consist of special tokens (" + tokens +
         "): they are shown (--skip-special-tokens on leaves them out)\n";
}

namespace {

std::string place_text(const std::string& tier) {
  return tier == "ram" ? "in memory" : tier == "disk" ? "on disk" : "in " + tier;
}

std::string prompt_text(const GenerateResult& result) {
  const CacheReport& cache = result.cache;
  std::string text = format("prompt: %d of %d tokens were found", cache.n_prefix_tokens, result.n_prompt);
  std::string places;
  int32_t n_in_ram = cache.n_prefix_tokens;
  const auto add = [&](int32_t n, const std::string& tier) {
    if (n > 0) places += format("%s%d %s", places.empty() ? "" : ", ", n, place_text(tier).c_str());
  };
  for (const auto& [tier, n] : cache.prefix_sources) {
    add(n, tier);
    n_in_ram -= n;
  }
  add(n_in_ram, "ram");
  if (cache.saved_ms > 0) places += format("; about %.0f ms saved", cache.saved_ms);
  if (!places.empty()) text += " (" + places + ")";
  text += format(", %d computed", result.n_prompt - cache.n_prefix_tokens);
  if (!cache.prefix_reason.empty()) text += " (" + cache.prefix_reason + ")";
  return text + "\n";
}

std::string image_text(const CacheReport::Image& image) {
  using Image = CacheReport::Image;
  std::string text = format("%d tokens ", image.n_tokens);
  if (image.n_dropped > 0) {
    const auto n = static_cast<long long>(image.n_dropped);
    text += format("(and %lld dropped as copies of their neighbours) ", n);
  }
  if (image.source == Image::Source::kPrefix) text += "found with the prompt";
  if (image.loaded()) {
    if (image.similar) text += format("of a similar image, %d of them changed or next to a change, ", image.n_changed);
    text += "found " + (image.source == Image::Source::kRam ? place_text("ram") : place_text(image.tier)) + " (" +
            image.form;
    if (image.n_kept < image.n_tokens) text += format(": %d of them are kept", image.n_kept);
    text += format("), %.1f recomputed (mean over layers)", image.n_recomputed);
  }
  if (image.source == Image::Source::kComputed) text += "computed: " + image.reason;
  if (image.encoder == Image::Encoder::kHit) text += "; encoder output: hit";
  if (image.encoder == Image::Encoder::kComputed) text += "; encoded";
  return text + "\n";
}

// All units of a video.
std::string video_text(std::span<const CacheReport::Image> units) {
  std::set<Sha256Digest> different;
  int32_t n_tokens = 0, n_loaded = 0, n_prefix = 0, n_encoded = 0;
  for (const CacheReport::Image& unit : units) {
    different.insert(unit.key);
    n_tokens += unit.n_tokens;
    n_loaded += unit.loaded() ? 1 : 0;
    n_prefix += unit.source == CacheReport::Image::Source::kPrefix ? 1 : 0;
    n_encoded += unit.encoder == CacheReport::Image::Encoder::kComputed ? 1 : 0;
  }
  std::string text = format("%zu units of %d frames, %zu of them different, %d tokens; ", units.size(),
                            units[0].n_frames, different.size(), n_tokens);
  text +=
      format("%d units encoded; KV of %d computed", n_encoded, static_cast<int>(units.size()) - n_loaded - n_prefix);
  if (n_prefix > 0) text += format(", of %d found with the prompt", n_prefix);
  if (n_loaded > 0) text += format(", of %d found by themselves", n_loaded);
  return text + "\n";
}

std::string media_text(std::span<const CacheReport::Image> images) {
  std::string text;
  for (size_t i = 0, n_images = 0; i < images.size();) {
    size_t end = i + 1;
    while (images[i].video >= 0 && end < images.size() && images[end].video == images[i].video) ++end;
    if (images[i].video >= 0) {
      text += format("video %d: ", images[i].video + 1) + video_text(images.subspan(i, end - i));
    } else {
      text += format("image %zu: ", ++n_images) + image_text(images[i]);
    }
    i = end;
  }
  return text;
}

std::string not_compressed(const GenerateResult& result) {
  return "not compressed: " + not_compressed_text(result.kv, "--kv draft");
}

}  // namespace

void Explainer::print(const GenerateResult& result, const CacheTotals& totals) {
  std::string text = prompt_text(result);
  text += media_text(result.cache.images);
  if (result.kv.n_before_acting < 0) text += "KV: " + not_compressed(result) + "\n";
  if (result.kv.n_before_acting > 0) {
    text += format("KV: compressed after %d tokens of the answer; the next token came %.0f ms after them\n",
                   result.kv.n_before_acting, result.timings.gap_ms);
  }
  const auto of = [](const CacheTotals::Cache& c) {
    return format("%lld of %lld", static_cast<long long>(c.n_hits), static_cast<long long>(c.n_hits + c.n_misses));
  };
  const CacheTotals::Cache &prompts = totals.prefix, &images = totals.image_kv, &encoded = totals.encoder;
  text += format("since the start: %lld of %lld prompt tokens were found", static_cast<long long>(prompts.n_tokens),
                 static_cast<long long>(prompts.n_asked_tokens));
  if (images.n_hits + images.n_misses > 0) text += ", the KV of " + of(images) + " images";
  if (encoded.n_hits + encoded.n_misses > 0) text += ", the embeddings of " + of(encoded) + " images";
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  text += format("; memory for them: %.1f of %.0f MiB", mib(prompts.bytes + images.bytes + encoded.bytes),
                 mib(totals.max_bytes));
  text += "\n";
  if (!result.cache.images.empty() && !std::exchange(told_, true)) text += reuse_.in_short();
  std::fputs(text.c_str(), stderr);
}

std::string summary(const GenerateResult& result) {
  const auto rate = [](double n, double ms) { return ms > 0 ? n / ms * 1000.0 : 0.0; };
  const Timings& t = result.timings;
  std::string line;
  if (result.n_vision > 0) line += format("vision %.0f ms (%d tokens) | ", t.vision_ms, result.n_vision);
  const double loaded = result.cache.n_loaded();
  line += format("first token %.0f ms (%d prompt tokens, ", t.ttft_ms, result.n_prompt);
  if (loaded > 0) line += format("%.0f of them from the cache, ", loaded);
  line += format("%.0f/s) | ", rate(result.n_prompt - loaded, t.prefill_ms));
  const size_t n = result.tokens.size();
  if (n > 1) {
    line += format("%zu tokens, %.1f/s | ", n, rate(static_cast<double>(n - 1), t.decode_ms));
  } else {
    line += format("%zu token%s | ", n, n == 1 ? "" : "s");
  }
  line += format("KV %.1f MiB (%s)", static_cast<double>(result.kv.bytes) / 1048576.0, result.kv.mode.c_str());
  return result.kv.n_before_acting < 0 ? line + ", " + not_compressed(result) : line;
}

}  // namespace vlcache
