#include "api/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/nearest.h"
#include "engine/answer_text.h"
#include "engine/engine.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Body = RequestField::Body;

constexpr double kMaxBias = 100;  // OpenAI's

// Reads the value of a field into its member.
class FieldReader {
 public:
  FieldReader(const RequestField& field, const FieldSource& source, const OrderedJson& value)
      : field_(field), source_(source), value_(value) {}

  void operator()(std::optional<int32_t>& out) const {
    const double x = value_.is_number() ? value_.get<double>() : NAN;
    if (!(x == std::floor(x) && field_.low <= x && x <= field_.high)) {
      fail("an integer from " + std::to_string(static_cast<int64_t>(field_.low)) + " to " +
           std::to_string(static_cast<int64_t>(field_.high)));
    }
    out = static_cast<int32_t>(x);
  }
  void operator()(std::optional<float>& out) const { out = static_cast<float>(number()); }
  void operator()(std::optional<double>& out) const { out = number(); }
  void operator()(std::optional<bool>& out) const {
    if (!value_.is_boolean()) fail("true or false");
    out = value_.get<bool>();
  }
  void operator()(std::optional<std::string>& out) const {
    if (!value_.is_string()) fail("a string");
    out = value_.get<std::string>();
  }
  void operator()(std::optional<Seed>& out) const {
    constexpr double kExact = 9007199254740992.0;  // up to here, doubles represent all integers exactly
    Seed seed;
    if (value_.is_number_unsigned()) {
      seed.value = value_.get<uint64_t>();
    } else {
      const double x = value_.is_number() ? value_.get<double>() : NAN;
      if (!value_.is_number_integer() && !(x == std::floor(x) && std::abs(x) <= kExact)) fail("an integer");
      const auto whole = value_.get<int64_t>();
      seed = {.value = static_cast<uint64_t>(whole), .fresh = whole == -1};
    }
    out = seed;
  }
  void operator()(std::optional<BudgetText>& out) const {
    if (!value_.is_string() && !value_.is_number()) fail("a number or a string such as \"512MiB\"");
    out = BudgetText{value_.is_string() ? value_.get<std::string>() : value_.dump()};
  }
  void operator()(std::optional<std::vector<std::string>>& out) const {
    std::vector<std::string> texts;
    if (value_.is_string()) {
      texts.push_back(value_.get<std::string>());
    } else {
      for (const OrderedJson& item : value_.is_array() ? value_ : OrderedJson::array({0})) {
        if (!item.is_string()) fail("a string or a list of strings");
        texts.push_back(item.get<std::string>());
      }
    }
    out = std::move(texts);
  }
  void operator()(std::optional<std::vector<int32_t>>& out) const {
    if (!value_.is_array()) fail("a list of token ids");
    std::vector<int32_t> ids;
    for (const OrderedJson& id : value_) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) fail("a list of token ids");
      ids.push_back(id.get<int32_t>());
    }
    out = std::move(ids);
  }
  // {"TOKEN ID": number added to its logit}. The engine checks that the tokens exist.
  void operator()(std::optional<std::vector<TokenBias>>& out) const {
    if (value_.empty()) return;
    if (!value_.is_object()) fail("an object, token ids to numbers");
    std::vector<TokenBias> biases;
    for (const auto& [id, bias] : value_.items()) {
      TokenBias& b = biases.emplace_back();
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), b.token);
      if (error != std::errc() || end != id.data() + id.size() || b.token < 0) {
        throw Error(ErrorCode::kInput,
                    source_.where + field_.name + ": expected token ids as names, found \"" + id + "\"");
      }
      const double x = bias.is_number() ? bias.get<double>() : NAN;
      if (!(std::abs(x) <= kMaxBias)) {
        throw Error(ErrorCode::kInput, source_.where + field_.name + "." + id + ": expected a number from -100 to 100");
      }
      b.bias = static_cast<float>(x);
    }
    out = std::move(biases);
  }
  void operator()(OrderedJson& out) const { out = value_; }

 private:
  double number() const {
    const double x = value_.is_number() ? value_.get<double>() : NAN;
    if (!(field_.low <= x && x <= field_.high)) {
      std::string range;
      if (field_.low > -FLT_MAX) range = " >= " + OrderedJson(field_.low).dump();
      if (field_.low > -FLT_MAX && field_.high < FLT_MAX) {
        range = " from " + OrderedJson(field_.low).dump() + " to " + OrderedJson(field_.high).dump();
      }
      fail("a number" + range);
    }
    return x;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    std::string what = source_.where + field_.name + ": expected " + expected;
    if (source_.tells_found) what += ", found " + shown_json(value_);
    throw Error(ErrorCode::kInput, what);
  }

  const RequestField& field_;
  const FieldSource& source_;
  const OrderedJson& value_;
};

// Calls `act` with a field's member in each of the structs; skips fields with readers of their own.
template <typename Act, typename... Fields>
void with_member(const RequestField& field, const Act& act, Fields&... fields) {
  std::visit(
      [&](auto member) {
        if constexpr (!std::is_same_v<decltype(member), std::monostate>) act(fields.*member...);
      },
      field.member);
}

template <typename T>
bool is_set(const std::optional<T>& value) {
  return value.has_value();
}
bool is_set(const OrderedJson& value) { return !value.is_null(); }

// Names in `vlcache` that are not known, and those that belong there but stand beside it.
void check_own_names(const OrderedJson& body) {
  std::vector<std::string> names;
  for (const RequestField& field : request_fields()) {
    if (field.body == Body::kVlcache) names.emplace_back(field.name);
  }
  if (const OrderedJson* ours = find_field(body, "vlcache"); ours != nullptr && ours->is_object()) {
    for (const auto& [name, value] : ours->items()) {
      if (std::ranges::find(names, name) != names.end()) continue;
      std::string all;
      for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
      bad_field("vlcache." + name + ": not known" + did_you_mean(name, names) + "; there are " + all);
    }
  }
  for (const std::string& name : names) {
    // A timeout is a word of many clients.
    if (name != "timeout" && find_field(body, name.c_str()) != nullptr) {
      bad_field(name + ": belongs into the object \"vlcache\": {\"vlcache\": {\"" + name + "\": ...}}");
    }
  }
}

// Names that llama.cpp and vLLM's users have for fields of all bodies.
void read_peer_names(const OrderedJson& body, RequestFields& fields) {
  if (!fields.repetition_penalty) {
    RequestField penalty = request_field("repetition_penalty");
    penalty.name = "repeat_penalty";
    read_field(penalty, {.object = body, .where = ""}, fields);
  }
  const OrderedJson* more = find_field(body, "vllm_xargs");
  if (more == nullptr || !more->is_object() || fields.no_repeat_ngram_size) return;
  read_field(request_field("no_repeat_ngram_size"), {.object = *more, .where = "vllm_xargs."}, fields);
}

}  // namespace

void read_field(const RequestField& field, const FieldSource& source, RequestFields& fields) {
  const OrderedJson* value = find_field(source.object, field.name);
  if (value == nullptr) return;
  with_member(
      field, [&](auto& member) { FieldReader(field, source, *value)(member); }, fields);
}

RequestFields read_line_fields(const OrderedJson& line) {
  RequestFields fields;
  const FieldSource source{.object = line, .where = "request: ", .tells_found = true};
  for (const RequestField& field : request_fields()) {
    if (field.line) read_field(field, source, fields);
  }
  return fields;
}

std::optional<int32_t> unusual_max_tokens(const OrderedJson& body, const char* name) {
  const OrderedJson* value = find_field(body, name);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  if (*value == 0) return 0;
  return *value == -1 ? std::optional<int32_t>(INT32_MAX) : std::nullopt;
}

RequestFields read_body_fields(const OrderedJson& body) {
  RequestFields fields = read_common_fields(body);
  fields.max_tokens = unusual_max_tokens(body, "max_tokens");
  for (const RequestField& field : request_fields()) {
    if (field.body != Body::kOpenAi || (fields.max_tokens && field.name == std::string_view("max_tokens"))) continue;
    read_field(field, {.object = body, .where = ""}, fields);
  }
  return fields;
}

RequestFields read_common_fields(const OrderedJson& body) {
  RequestFields fields;
  const OrderedJson* ours = find_field(body, "vlcache");
  if (ours != nullptr && !ours->is_object()) bad_field("vlcache: expected an object");
  check_own_names(body);
  for (const RequestField& field : request_fields()) {
    if (field.body == Body::kAll) read_field(field, {.object = body, .where = ""}, fields);
    if (field.body == Body::kVlcache && ours != nullptr)
      read_field(field, {.object = *ours, .where = "vlcache."}, fields);
  }
  read_peer_names(body, fields);
  if (fields.kv && names_file(*fields.kv)) {
    bad_field(
        "vlcache.kv: a request may not name a file; without 'heads' the policy reads heads.json beside the model");
  }
  if (!fields.reuse && !fields.cache_prompt.value_or(true)) fields.reuse = "off";
  return fields;
}

RequestFields over(RequestFields fields, const RequestFields& below) {
  const bool has_policy = fields.kv || fields.kv_budget;
  for (const RequestField& field : request_fields()) {
    if (has_policy && (field.name == std::string_view("kv") || field.name == std::string_view("kv_budget"))) continue;
    with_member(
        field,
        [](auto& member, const auto& lower) {
          if (!is_set(member)) member = lower;
        },
        fields, below);
  }
  return fields;
}

RequestFields checkpoint_fields(const GenerationDefaults& defaults) {
  RequestFields fields;
  const auto take = [](auto& field, const auto& value) {
    if (value) field = static_cast<std::decay_t<decltype(*field)>>(*value);
  };
  take(fields.repetition_penalty, defaults.repetition_penalty);
  take(fields.no_repeat_ngram_size, defaults.no_repeat_ngram_size);
  if (!defaults.stop_strings.empty()) fields.stop = defaults.stop_strings;
  if (!defaults.suppress_tokens.empty()) fields.suppress_tokens = defaults.suppress_tokens;
  if (!defaults.do_sample) return fields;
  fields.temperature = static_cast<float>(defaults.temperature.value_or(1.0));
  take(fields.top_p, defaults.top_p);
  take(fields.min_p, defaults.min_p);
  take(fields.top_k, defaults.top_k);
  return fields;
}

RequestFields fallback_fields(Front front) {
  RequestFields fields;
  OrderedJson object = OrderedJson::object();
  for (const RequestField& field : request_fields()) {
    if (const char* text = field.fallback_of(front); *text != '\0') object[field.name] = OrderedJson::parse(text);
  }
  for (const RequestField& field : request_fields()) read_field(field, {.object = object, .where = ""}, fields);
  return fields;
}

RequestFields default_fields(const RequestFields& flags, const GenerationDefaults& checkpoint, Front front) {
  return over(over(flags, checkpoint_fields(checkpoint)), fallback_fields(front));
}

RequestFields defaults_for(const Engine& engine, const RequestFields& flags, Front front) {
  RequestFields given = flags;
  if (!given.skip_special_tokens && !answer_tokens(engine).empty()) given.skip_special_tokens = false;
  return default_fields(given, engine.model().config().generation, front);
}

GenerateOptions generate_options(const RequestFields& fields) {
  GenerateOptions options;
  SamplingParams& s = options.sampling;
  s.temperature = fields.temperature.value_or(0.0f);
  s.top_k = std::max(0, fields.top_k.value_or(0));  // -1: all
  s.top_p = fields.top_p.value_or(1.0f);
  if (s.top_p == 0.0f) {  // what is likeliest makes up any mass
    s.top_p = 1;
    s.top_k = 1;
  }
  s.min_p = fields.min_p.value_or(0.0f);
  s.repetition_penalty = fields.repetition_penalty.value_or(1.0f);
  s.presence_penalty = fields.presence_penalty.value_or(0.0f);
  s.frequency_penalty = fields.frequency_penalty.value_or(0.0f);
  s.biases = fields.logit_bias.value_or(std::vector<TokenBias>());
  const Seed seed = fields.seed.value_or(Seed{.value = 0, .fresh = true});
  s.seed = seed.fresh ? std::random_device{}() : seed.value;
  s.n_logprobs = fields.logprobs.value_or(-1);
  s.validate();
  options.max_tokens = fields.max_tokens.value_or(options.max_tokens);
  options.min_tokens = fields.min_tokens.value_or(0);
  options.ignore_eos = fields.ignore_eos.value_or(false);
  options.stop = fields.stop.value_or(std::vector<std::string>());
  options.stop_tokens = fields.stop_token_ids.value_or(std::vector<int32_t>());
  options.allowed_tokens = fields.allowed_token_ids.value_or(std::vector<int32_t>());
  options.skip_special_tokens = fields.skip_special_tokens.value_or(true);
  options.spaces_between_special = fields.spaces_between_special_tokens.value_or(true);
  options.include_stop = fields.include_stop_str_in_output.value_or(false);
  options.rules.suppressed = fields.suppress_tokens.value_or(std::vector<int32_t>());
  options.rules.no_repeat_ngram = fields.no_repeat_ngram_size.value_or(0);
  return options;
}

}  // namespace vlcache
