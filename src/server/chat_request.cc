// Field by field; clients differ in what they leave out, send as null, or send beside.
#include "server/chat_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "server/json_fields.h"
#include "server/picture_parts.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

double number(const OrderedJson& object, const char* key, double fallback, double low, double high) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : low - 1;
  if (!(x >= low && x <= high)) {
    bad_field(std::string(key) + ": expected a number from " + OrderedJson(low).dump() + " to " +
              OrderedJson(high).dump());
  }
  return x;
}

int64_t integer(const OrderedJson& object, const char* key, int64_t fallback, int64_t low, int64_t high) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return fallback;
  const bool whole =
      value->is_number_integer() || (value->is_number() && std::floor(value->get<double>()) == value->get<double>());
  const double x = whole ? value->get<double>() : 0;
  if (!whole || x < static_cast<double>(low) || x > static_cast<double>(high)) {
    bad_field(std::string(key) + ": expected an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value->get<int64_t>();
}

std::string string(const OrderedJson& object, const char* key, const std::string& fallback) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) bad_field(std::string(key) + ": expected a string");
  return value->get<std::string>();
}

std::vector<std::string> strings(const OrderedJson& object, const char* key) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> out;
  for (const OrderedJson& item : value->is_array() ? *value : OrderedJson::array({0})) {
    if (!item.is_string()) bad_field(std::string(key) + ": expected a string or a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

uint64_t seed_of(const OrderedJson& body) {
  const OrderedJson* value = find_field(body, "seed");
  if (value == nullptr) return std::random_device{}();
  if (!value->is_number_integer()) bad_field("seed: expected an integer");
  return value->is_number_unsigned() ? value->get<uint64_t>() : static_cast<uint64_t>(value->get<int64_t>());
}

// {"TOKEN ID": what its logit has more}. Whether there are such tokens, the engine knows.
std::vector<TokenBias> biases_of(const OrderedJson& body) {
  const OrderedJson* biases = find_field(body, "logit_bias");
  if (biases == nullptr || biases->empty()) return {};
  if (!biases->is_object()) bad_field("logit_bias: expected an object, token ids to numbers");
  std::vector<TokenBias> out;
  for (const auto& [id, bias] : biases->items()) {
    TokenBias& b = out.emplace_back();
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), b.token);
    if (error != std::errc() || end != id.data() + id.size() || b.token < 0) {
      bad_field("logit_bias: expected token ids as names, found \"" + id + "\"");
    }
    const double x = bias.is_number() ? bias.get<double>() : NAN;
    if (!(std::abs(x) <= 100)) bad_field("logit_bias." + id + ": expected a number from -100 to 100");
    b.bias = static_cast<float>(x);
  }
  return out;
}

void read_options(const OrderedJson& body, GenerateOptions& options) {
  SamplingParams& s = options.sampling;
  s.temperature = static_cast<float>(number(body, "temperature", s.temperature, 0, 100));
  s.top_p = static_cast<float>(number(body, "top_p", s.top_p, 0, 1));
  s.min_p = static_cast<float>(number(body, "min_p", s.min_p, 0, 1));
  s.top_k = static_cast<int32_t>(std::max<int64_t>(0, integer(body, "top_k", s.top_k, -1, INT32_MAX)));  // -1: all
  s.presence_penalty = static_cast<float>(number(body, "presence_penalty", s.presence_penalty, -2, 2));
  s.frequency_penalty = static_cast<float>(number(body, "frequency_penalty", s.frequency_penalty, -2, 2));
  s.repetition_penalty = static_cast<float>(number(body, "repetition_penalty", s.repetition_penalty, 1e-3, 100));
  s.biases = biases_of(body);
  s.seed = seed_of(body);
  const bool logprobs = bool_field(body, "logprobs", false);
  const auto n_top = static_cast<int32_t>(integer(body, "top_logprobs", 0, 0, 20));
  if (n_top > 0 && !logprobs) bad_field("top_logprobs: expected logprobs to be true with it");
  s.n_logprobs = logprobs ? n_top : -1;
  s.validate();
  const char* most = find_field(body, "max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  options.max_tokens = static_cast<int32_t>(integer(body, most, options.max_tokens, 1, INT32_MAX));
  options.ignore_eos = bool_field(body, "ignore_eos", options.ignore_eos);
  options.stop = strings(body, "stop");
}

constexpr int kMaxPriority = 1 << 20;

// What is known and would change the answer, but is not done here, is better refused than forgotten.
void refuse_unsupported(const OrderedJson& body) {
  for (const char* key : {"functions", "audio"}) {
    const OrderedJson* value = find_field(body, key);
    if (value != nullptr && !value->empty()) bad_field(std::string(key) + ": not supported by this server");
  }
}

// What may be called, which excludes other forms of answers.
void read_tools(const OrderedJson& body, ChatRequest& request) {
  request.tools = read_tool_use(body);
  if (request.tools.may_call() && request.format.kind != AnswerFormat::Kind::kText) {
    bad_field("response_format: not together with tools; send tool_choice \"none\" for an answer without calls");
  }
}

// What a template may show besides; what a request says elsewhere has its own place.
OrderedJson read_template_variables(const OrderedJson& body) {
  const OrderedJson* variables = find_field(body, "chat_template_kwargs");
  if (variables == nullptr) return nullptr;
  if (!variables->is_object()) bad_field("chat_template_kwargs: expected an object");
  for (const char* key : {"messages", "tools", "documents", "add_generation_prompt", "chat_template"}) {
    if (variables->contains(key)) bad_field("chat_template_kwargs." + std::string(key) + ": not for a request to say");
  }
  return *variables;
}

// How pictures are to be shown, as far as that is the same for all of them.
PictureOptions read_picture_options(const OrderedJson& body) {
  PictureOptions options;
  options.min_tokens = static_cast<int32_t>(integer(body, "min_image_tokens", 0, 0, INT32_MAX));
  options.max_tokens = static_cast<int32_t>(integer(body, "max_image_tokens", 0, 1, INT32_MAX));
  if (options.max_tokens > 0 && options.min_tokens > options.max_tokens) {
    bad_field("min_image_tokens: expected at most max_image_tokens");
  }
  const OrderedJson* settings = find_field(body, "mm_processor_kwargs");
  if (settings == nullptr) return options;
  if (!settings->is_object()) bad_field("mm_processor_kwargs: expected an object");
  if (!settings->empty()) options.settings = settings->dump();
  return options;
}

void read_content(OrderedJson& content, const std::string& where, PictureParts& pictures) {
  if (content.is_string()) return;
  if (content.is_null()) {  // of an assistant's message that only called tools
    content = "";
    return;
  }
  if (!content.is_array()) bad_field(where + ": expected a string or a list of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    OrderedJson& part = content[i];
    const std::string at = where + "[" + std::to_string(i) + "]";
    const std::string type = part.is_object() ? part.value("type", "") : "";
    if (type == "text" && part.contains("text") && part["text"].is_string()) {
      part = {{"type", "text"}, {"text", part["text"]}};
    } else if (type == "image_url") {
      pictures.take(part, at);
    } else {
      bad_field(at + ": expected a part of type \"text\" or \"image_url\", found \"" + type + "\"");
    }
  }
}

OrderedJson read_messages(OrderedJson messages, PictureParts& pictures) {
  if (!messages.is_array() || messages.empty()) bad_field("messages: expected a list of messages, at least one");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    OrderedJson& message = messages[i];
    if (!message.is_object()) bad_field(where + ": expected an object");
    std::string role = string(message, "role", "");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      bad_field(where + ".role: expected system, developer, user, assistant or tool, found \"" + role + "\"");
    }
    OrderedJson content = message.contains("content") ? std::move(message["content"]) : OrderedJson();
    read_content(content, where + ".content", pictures);
    if (role == "system" && content.empty()) continue;
    if (role == "system" && content.is_string() && content.get_ref<const std::string&>().empty()) continue;
    out.push_back({{"role", role}, {"content", std::move(content)}});
    const OrderedJson* calls = role == "assistant" ? find_field(message, "tool_calls") : nullptr;
    if (calls != nullptr && !calls->empty()) out.back()["tool_calls"] = read_tool_calls(*calls, where + ".tool_calls");
    if (role == "tool") out.back()["tool_call_id"] = string(message, "tool_call_id", "");
    if (role == "tool" && find_field(message, "name") != nullptr) out.back()["name"] = string(message, "name", "");
  }
  if (out.empty()) bad_field("messages: expected one that is not empty");
  return out;
}

void read_vlcache(const OrderedJson& body, ChatRequest& request) {
  const OrderedJson* ours = find_field(body, "vlcache");
  if (ours == nullptr) return;
  if (!ours->is_object()) bad_field("vlcache: expected an object");
  if (find_field(*ours, "kv") != nullptr || find_field(*ours, "kv_budget") != nullptr) {
    request.kv = string(*ours, "kv", "");
    const OrderedJson* budget = find_field(*ours, "kv_budget");
    if (budget != nullptr && !budget->is_string() && !budget->is_number())
      bad_field("vlcache.kv_budget: expected a number or a string such as \"512MiB\"");
    request.kv_budget = budget == nullptr ? "" : budget->is_string() ? budget->get<std::string>() : budget->dump();
  }
  request.reuse = string(*ours, "reuse", request.reuse);
  constexpr double kLongest = 7 * 24 * 3600;
  request.timeout = std::chrono::milliseconds(std::llround(1000 * number(*ours, "timeout", 0, 0, kLongest)));
  request.explain = bool_field(*ours, "explain", false);
}

}  // namespace

ChatRequest read_generation_fields(const OrderedJson& body, const ChatRequest& defaults, const ChatLimits& limits) {
  ChatRequest request = defaults;
  read_options(body, request.options);
  request.n = static_cast<int>(integer(body, "n", 1, 1, limits.max_answers));
  request.priority = static_cast<int32_t>(-integer(body, "priority", -defaults.priority, -kMaxPriority, kMaxPriority));
  request.stream = bool_field(body, "stream", false);
  request.format = read_answer_format(body);
  if (const OrderedJson* options = find_field(body, "stream_options"); options != nullptr && options->is_object()) {
    request.include_usage = bool_field(*options, "include_usage", false);
  }
  request.progress = bool_field(body, "return_progress", false);
  request.cache_salt = string(body, "cache_salt", "");
  if (!bool_field(body, "cache_prompt", true)) request.reuse = "off";  // llama.cpp's
  read_vlcache(body, request);
  return request;
}

ChatRequest read_chat_request(std::string_view body, const ChatRequest& defaults, const ChatLimits& limits) {
  return chat_request_of(parse_body(body), defaults, limits);
}

ChatRequest chat_request_of(OrderedJson json, const ChatRequest& defaults, const ChatLimits& limits) {
  refuse_unsupported(json);
  ChatRequest request = read_generation_fields(json, defaults, limits);
  read_tools(json, request);
  OrderedJson messages = json.contains("messages") ? std::move(json["messages"]) : OrderedJson();
  request.template_variables = read_template_variables(json);
  PictureParts pictures(limits, read_picture_options(json), request);
  request.messages = read_messages(std::move(messages), pictures);
  return request;
}

}  // namespace vlcache
