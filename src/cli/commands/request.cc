// A line of JSON is parsed once, then every key is checked for type and range.
#include "cli/commands/request.h"

#include <algorithm>
#include <array>

#include "api/reuse_choice.h"
#include "base/error.h"
#include "base/json.h"
#include "base/nearest.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Keys of a line besides the request fields.
constexpr std::array kOwnKeys{"id", "prompt", "messages", "images", "raw", "system"};

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInput, "request: " + what); }

// The system would end the name at a NUL and open another file.
std::string checked_path(std::string path) {
  if (path.starts_with("file://")) path.erase(0, 7);
  if (path.find('\0') != std::string::npos) {
    fail("a picture's path: expected no NUL character, found one after '" + path.substr(0, path.find('\0')) + "'");
  }
  return path;
}

// The path in an image's part, if it has one.
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

// Turns every image's part into a bare {"type": "image"}. Returns the paths in the order of the parts: a part's own, or
// the next of `listed`; the rest of those comes last, for placeholders within a text.
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

void check_keys(const OrderedJson& object) {
  std::vector<std::string> known(kOwnKeys.begin(), kOwnKeys.end());
  for (const RequestField& field : request_fields()) {
    if (field.line) known.emplace_back(field.name);
  }
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    std::string all;
    for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
    fail("unknown key '" + key + "'" + did_you_mean(key, known) + "; known are " + all);
  }
}

Question parse_question(OrderedJson object, const Question& defaults) {
  Question q = defaults;
  // Templates print keys in their original order: messages keep it; for the rest it does not matter.
  if (object.contains("messages")) q.messages = std::exchange(object["messages"], OrderedJson());
  const Json json(object);
  const JsonObject o(json, "request");
  q.raw = o.boolean("raw", q.raw);
  q.system = o.string("system", q.system);
  if (o.has("prompt") != q.messages.is_null())
    fail(std::string("expected either prompt or messages, found ") + (o.has("prompt") ? "both" : "neither"));
  for (std::string& path : strings(o, "images")) q.images.push_back(checked_path(std::move(path)));
  if (o.has("prompt")) {
    q.prompt = o.string("prompt");
  } else {
    if (q.raw) fail("raw takes a prompt, not messages");
    q.images = take_images(q.messages, q.images);
  }
  return q;
}

}  // namespace

RequestLine read_request(std::string_view line, const Question& defaults, const RequestFields& default_fields) {
  RequestLine out;
  try {
    OrderedJson json = parse_ordered_json(line, "request");
    if (!json.is_object()) fail(std::string("expected a JSON object, found ") + json.type_name());
    if (json.contains("id")) out.id = json["id"];
    check_keys(json);
    out.fields = over(read_line_fields(json), default_fields);
    if (out.fields.reuse) check_reuse(*out.fields.reuse);
    out.question = parse_question(std::move(json), defaults);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

}  // namespace vlcache
