// Reading a line of JSON: one parse, then every key by its type and range.
#include "cli/request.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "cli/reuse_choice.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array kKeys{"id",
                           "prompt",
                           "messages",
                           "images",
                           "raw",
                           "kv",
                           "kv_budget",
                           "reuse",
                           "response_format",
                           "system",
                           "max_tokens",
                           "temperature",
                           "top_k",
                           "top_p",
                           "min_p",
                           "repetition_penalty",
                           "presence_penalty",
                           "frequency_penalty",
                           "seed",
                           "stop",
                           "stop_token_ids",
                           "ignore_eos",
                           "logprobs"};

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInput, "request: " + what); }

// The system would end the name at a NUL and open another file.
std::string checked_path(std::string path) {
  if (path.starts_with("file://")) path.erase(0, 7);
  if (path.find('\0') != std::string::npos) {
    fail("a picture's path: expected no NUL character, found one after '" + path.substr(0, path.find('\0')) + "'");
  }
  return path;
}

// The path that a picture's part carries, if it does.
std::optional<std::string> path_of(const OrderedJson& part) {
  for (const char* key : {"image", "image_url", "path", "url"}) {
    if (!part.contains(key)) continue;
    const OrderedJson& value = part[key];
    const OrderedJson path = value.is_object() ? value.value("url", OrderedJson()) : value;
    if (!path.is_string()) fail("messages: a picture's part: expected a path as " + std::string(key));
    return checked_path(path.get<std::string>());
  }
  return std::nullopt;
}

bool is_image_part(const OrderedJson& part) {
  if (!part.is_object() || !part.contains("type")) return false;
  return part["type"] == "image" || part["type"] == "image_url";
}

// Makes every picture's part a bare {"type": "image"}. Returns the paths in the order of the parts: a part's own, or
// the next of `listed`; what is left of those comes last, for placeholders that stand in a text.
std::vector<std::string> take_images(OrderedJson& messages, const std::vector<std::string>& listed) {
  if (!messages.is_array() || messages.empty()) fail("messages: expected a list of {role, content}");
  std::vector<std::string> images;
  size_t next = 0;
  for (OrderedJson& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      const std::string found = message.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
      fail("messages: expected {role, content}, found " + found.substr(0, 60));
    }
    if (!message.contains("content") || !message["content"].is_array()) continue;
    for (OrderedJson& part : message["content"]) {
      if (!is_image_part(part)) continue;
      std::optional<std::string> path = path_of(part);
      if (!path && next == listed.size()) {
        fail("messages: more pictures without a path of their own than images, which lists " +
             std::to_string(listed.size()));
      }
      images.push_back(path ? std::move(*path) : listed[next++]);
      part = {{"type", "image"}};
    }
  }
  images.insert(images.end(), listed.begin() + static_cast<int64_t>(next), listed.end());
  return images;
}

std::vector<std::string> strings(const JsonObject& o, std::string_view key) {
  const Json* value = o.find(key);
  std::vector<std::string> out;
  if (value == nullptr) return out;
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) o.fail(key, "a string or a list of strings");
  for (const Json& item : *value) {
    if (!item.is_string()) o.fail(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

// What is not given is not checked: a default is the command line's affair.
int32_t bounded(const JsonObject& o, std::string_view key, int32_t fallback, int32_t low, int32_t high) {
  if (!o.has(key)) return fallback;
  const int64_t value = o.integer(key);
  if (value < low || value > high)
    o.fail(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return static_cast<int32_t>(value);
}

uint64_t seed(const JsonObject& o, uint64_t fallback) {
  const Json* value = o.find("seed");
  if (value == nullptr) return fallback;
  if (value->is_number_unsigned()) return value->get<uint64_t>();  // beyond 2^53, where integer() ends
  const int64_t whole = o.integer("seed");
  if (whole < 0) o.fail("seed", "an integer from 0 to " + std::to_string(UINT64_MAX));
  return static_cast<uint64_t>(whole);
}

// A budget without a policy, or a policy without a budget, is read as on the command line: the other one is not that of
// the run's flags.
void read_policy(const JsonObject& o, UserRequest& r) {
  if (!o.has("kv") && !o.has("kv_budget")) return;
  r.kv = o.string("kv", "");
  r.kv_budget.clear();
  if (const Json* budget = o.find("kv_budget")) {
    if (!budget->is_string() && !budget->is_number()) o.fail("kv_budget", "a number or a string such as \"512MiB\"");
    r.kv_budget = budget->is_string() ? budget->get<std::string>() : budget->dump();
  }
}

void read_options(const JsonObject& o, GenerateOptions& options) {
  SamplingParams& s = options.sampling;
  options.max_tokens = bounded(o, "max_tokens", options.max_tokens, 1, INT32_MAX);
  s.temperature = static_cast<float>(o.number("temperature", s.temperature));
  s.top_k = bounded(o, "top_k", s.top_k, 0, INT32_MAX);
  s.top_p = static_cast<float>(o.number("top_p", s.top_p));
  s.min_p = static_cast<float>(o.number("min_p", s.min_p));
  s.repetition_penalty = static_cast<float>(o.number("repetition_penalty", s.repetition_penalty));
  s.presence_penalty = static_cast<float>(o.number("presence_penalty", s.presence_penalty));
  s.frequency_penalty = static_cast<float>(o.number("frequency_penalty", s.frequency_penalty));
  s.seed = seed(o, s.seed);
  s.n_logprobs = bounded(o, "logprobs", s.n_logprobs, -1, 1 << 20);
  options.ignore_eos = o.boolean("ignore_eos", options.ignore_eos);
  if (o.has("stop")) options.stop = strings(o, "stop");
  if (const Json* ids = o.find("stop_token_ids")) {
    if (!ids->is_array()) o.fail("stop_token_ids", "a list of token ids");
    options.stop_tokens.clear();
    for (const Json& id : *ids) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) o.fail("stop_token_ids", "a list of token ids");
      options.stop_tokens.push_back(id.get<int32_t>());
    }
  }
  s.validate();
}

void check_keys(const OrderedJson& object) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kKeys, key) != kKeys.end()) continue;
    std::string known;
    for (const char* k : kKeys) known += (known.empty() ? "" : ", ") + std::string(k);
    fail("unknown key '" + key + "'; known are " + known);
  }
}

UserRequest parse_request(OrderedJson object, const UserRequest& defaults) {
  check_keys(object);
  UserRequest r = defaults;
  // Templates print keys as they came: messages keep their order, schemas say one; for the rest it does not matter.
  if (object.contains("messages")) r.messages = std::exchange(object["messages"], OrderedJson());
  if (object.contains("response_format")) r.response_format = std::exchange(object["response_format"], OrderedJson());
  const Json json(object);
  const JsonObject o(json, "request");
  read_options(o, r.options);
  r.raw = o.boolean("raw", r.raw);
  r.system = o.string("system", r.system);
  read_policy(o, r);
  r.reuse = o.string("reuse", r.reuse);
  check_reuse(r.reuse);
  if (o.has("prompt") != r.messages.is_null())
    fail(std::string("expected either prompt or messages, found ") + (o.has("prompt") ? "both" : "neither"));
  for (std::string& path : strings(o, "images")) r.images.push_back(checked_path(std::move(path)));
  if (o.has("prompt")) {
    r.prompt = o.string("prompt");
  } else {
    if (r.raw) fail("raw takes a prompt, not messages");
    r.images = take_images(r.messages, r.images);
  }
  return r;
}

}  // namespace

RequestLine read_request(std::string_view line, const UserRequest& defaults) {
  RequestLine out;
  try {
    OrderedJson json = parse_ordered_json(line, "request");
    if (!json.is_object()) fail(std::string("expected a JSON object, found ") + json.type_name());
    if (json.contains("id")) out.id = json["id"];
    out.request = parse_request(std::move(json), defaults);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

}  // namespace vlcache
