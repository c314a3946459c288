// Reading requests, placing pictures, writing results.
#include "cli/request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "io/image/image.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array kKeys{"id",
                           "prompt",
                           "messages",
                           "images",
                           "raw",
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

// A picture inside a message becomes a bare {"type": "image"}, its path goes to `images`.
OrderedJson take_image(const OrderedJson& part, const std::string& type, std::vector<std::string>& images) {
  const auto path_of = [](const OrderedJson& value) {
    return value.is_object() ? value.value("url", OrderedJson()) : value;
  };
  for (const char* key : {"image", "image_url", "path", "url"}) {
    if (!part.contains(key)) continue;
    const OrderedJson path = path_of(part[key]);
    if (!path.is_string())
      throw Error(ErrorCode::kInput, "messages: a part of type '" + type + "': expected a path as " + key);
    std::string text = path.get<std::string>();
    if (text.starts_with("file://")) text.erase(0, 7);
    images.push_back(text);
    break;
  }
  return {{"type", "image"}};
}

OrderedJson normalise_messages(const OrderedJson& messages, std::vector<std::string>& images) {
  if (!messages.is_array() || messages.empty())
    throw Error(ErrorCode::kInput, "messages: expected a list of {role, content}");
  OrderedJson out = messages;
  for (OrderedJson& message : out) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      throw Error(ErrorCode::kInput, "messages: expected {role, content}, found " + message.dump().substr(0, 60));
    }
    if (!message.contains("content") || !message["content"].is_array()) continue;
    for (OrderedJson& part : message["content"]) {
      const std::string type =
          part.is_object() && part.contains("type") && part["type"].is_string() ? part["type"] : "";
      if (type == "image" || type == "image_url") part = take_image(part, type, images);
    }
  }
  return out;
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

int64_t bounded(const JsonObject& o, std::string_view key, int64_t fallback, int64_t low, int64_t high) {
  const int64_t value = o.integer(key, fallback);
  if (value < low || value > high)
    o.fail(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

void read_options(const JsonObject& o, GenerateOptions& options) {
  SamplingParams& s = options.sampling;
  options.max_tokens = static_cast<int32_t>(bounded(o, "max_tokens", options.max_tokens, 1, INT32_MAX));
  s.temperature = static_cast<float>(o.number("temperature", s.temperature));
  s.top_k = static_cast<int32_t>(bounded(o, "top_k", s.top_k, 0, INT32_MAX));
  s.top_p = static_cast<float>(o.number("top_p", s.top_p));
  s.min_p = static_cast<float>(o.number("min_p", s.min_p));
  s.repetition_penalty = static_cast<float>(o.number("repetition_penalty", s.repetition_penalty));
  s.presence_penalty = static_cast<float>(o.number("presence_penalty", s.presence_penalty));
  s.frequency_penalty = static_cast<float>(o.number("frequency_penalty", s.frequency_penalty));
  s.seed = static_cast<uint64_t>(bounded(o, "seed", static_cast<int64_t>(s.seed), 0, int64_t{1} << 53));
  s.n_logprobs = static_cast<int32_t>(bounded(o, "logprobs", s.n_logprobs, -1, 1 << 20));
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

// The content of a user message: text pieces and pictures where <image:N> says, the other pictures first.
OrderedJson place_images(std::string_view prompt, size_t n_images) {
  OrderedJson placed = OrderedJson::array();
  std::vector<bool> used(n_images, false);
  std::string text;
  const auto flush = [&] {
    if (!text.empty()) placed.push_back({{"type", "text"}, {"text", std::exchange(text, "")}});
  };
  for (size_t i = 0; i < prompt.size();) {
    size_t number = 0;
    const std::string_view rest = prompt.substr(i);
    const size_t close = rest.find('>');
    if (rest.starts_with("<image:") && close != std::string_view::npos &&
        std::from_chars(rest.data() + 7, rest.data() + close, number).ptr == rest.data() + close && close > 7) {
      if (number < 1 || number > n_images || used[number - 1]) {
        throw Error(ErrorCode::kInput, "the prompt says " + std::string(rest.substr(0, close + 1)) +
                                           "; expected each of 1 to " + std::to_string(n_images) +
                                           " (the images given) at most once");
      }
      used[number - 1] = true;
      flush();
      placed.push_back({{"type", "image"}, {"number", number - 1}});
      i += close + 1;
    } else {
      text += prompt[i++];
    }
  }
  flush();
  OrderedJson content = OrderedJson::array();
  for (size_t n = 0; n < n_images; ++n) {
    if (!used[n]) content.push_back({{"type", "image"}, {"number", n}});
  }
  content.insert(content.end(), placed.begin(), placed.end());
  return content;
}

}  // namespace

UserRequest parse_request(std::string_view line, const UserRequest& defaults) {
  const Json json = parse_json(line, "request");
  const JsonObject o(json, "request");
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(kKeys, key) != kKeys.end()) continue;
    std::string known;
    for (const char* k : kKeys) known += (known.empty() ? "" : ", ") + std::string(k);
    throw Error(ErrorCode::kInput, "request: unknown key '" + key + "'; known are " + known);
  }
  UserRequest r = defaults;
  if (o.has("id")) r.id = *o.find("id");
  read_options(o, r.options);
  r.raw = o.boolean("raw", r.raw);
  r.system = o.string("system", r.system);
  if (o.has("prompt") == o.has("messages")) {
    throw Error(ErrorCode::kInput, "request: expected either prompt or messages, found " +
                                       std::string(o.has("prompt") ? "both" : "neither"));
  }
  if (o.has("prompt")) {
    r.prompt = o.string("prompt");
    r.images = strings(o, "images");
  } else {
    // Read again in order: templates print keys as they came.
    r.messages = normalise_messages(OrderedJson::parse(line).at("messages"), r.images);
    for (std::string& image : strings(o, "images")) r.images.push_back(std::move(image));
    if (r.raw) throw Error(ErrorCode::kInput, "request: raw takes a prompt, not messages");
  }
  return r;
}

Prompt prepare(const Engine& engine, const UserRequest& request) {
  std::vector<Image> images;
  if (request.raw || !request.messages.is_null()) {
    for (const std::string& path : request.images) images.push_back(load_image(path));
    return request.raw ? engine.prepare_raw(request.prompt, std::move(images))
                       : engine.prepare_chat(request.messages, std::move(images));
  }
  OrderedJson content = place_images(request.prompt, request.images.size());
  for (OrderedJson& part : content) {
    if (part["type"] != "image") continue;
    images.push_back(load_image(request.images[part["number"].get<size_t>()]));
    part.erase("number");
  }
  OrderedJson messages = OrderedJson::array();
  // Plain strings where there are no pictures: templates of text models know nothing else.
  const auto message = [&](std::string_view role, const std::string& text, OrderedJson parts) {
    messages.push_back({{"role", role}, {"content", images.empty() ? OrderedJson(text) : std::move(parts)}});
  };
  if (!request.system.empty()) {
    message("system", request.system, OrderedJson::array({{{"type", "text"}, {"text", request.system}}}));
  }
  message("user", request.prompt, std::move(content));
  return engine.prepare_chat(messages, std::move(images));
}

OrderedJson result_json(const GenerateResult& result) {
  OrderedJson ids = OrderedJson::array(), logprobs = OrderedJson::array();
  for (const GeneratedToken& token : result.tokens) {
    ids.push_back(token.id);
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& t : token.top) top.push_back({{"token_id", t.token}, {"logprob", t.logprob}});
    logprobs.push_back({{"token_id", token.id}, {"logprob", token.logprob}, {"top", std::move(top)}});
  }
  const Timings& t = result.timings;
  const auto ms = [](double x) { return std::round(x * 1000.0) / 1000.0; };
  OrderedJson out{
      {"text", result.text},
      {"token_ids", std::move(ids)},
      {"finish_reason", result.finish_reason},
      {"tokens", {{"prompt", result.n_prompt}, {"vision", result.n_vision}, {"generated", result.tokens.size()}}},
      {"timings_ms",
       {{"load", ms(t.load_ms)},
        {"vision", ms(t.vision_ms)},
        {"prefill", ms(t.prefill_ms)},
        {"ttft", ms(t.ttft_ms)},
        {"decode", ms(t.decode_ms)}}},
      {"kv",
       {{"mode", result.kv.mode},
        {"bytes", result.kv.bytes},
        {"peak_bytes", result.kv.peak_bytes},
        {"slots", result.kv.slots}}}};
  if (result.has_logprobs) out["logprobs"] = std::move(logprobs);
  return out;
}

}  // namespace vlcache
