#include "cli/flags/batch_line.h"

#include <algorithm>
#include <array>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/exact_json.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/request_limits.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The endpoint of "/v1/chat/completions", with a host before it or not.
std::string endpoint_of(const OrderedJson* url) {
  constexpr std::array<std::string_view, 4> kEndpoints{"chat/completions", "completions", "messages", "responses"};
  if (url != nullptr && url->is_string()) {
    std::string_view path = url->get_ref<const std::string&>();
    if (const size_t scheme = path.find("://"); scheme != path.npos) {
      const size_t begin = path.find('/', scheme + 3);
      path = begin == path.npos ? std::string_view() : path.substr(begin);
    }
    if (path.starts_with('/')) path.remove_prefix(1);
    if (path.starts_with("v1/")) path.remove_prefix(3);
    if (path.ends_with('/')) path.remove_suffix(1);
    if (std::ranges::find(kEndpoints, path) != kEndpoints.end()) return std::string(path);
  }
  bad_field("url: expected /v1/chat/completions, /v1/completions, /v1/messages or /v1/responses, found " +
            (url == nullptr ? "none" : shown_json(*url)));
}

void read_members(const OrderedJson& object, BatchLine& line) {
  const std::vector<std::string> known{"custom_id", "method", "url", "body"};
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    bad_field("unknown key '" + key + "'" + did_you_mean(key, known) + "; known are custom_id, method, url, body");
  }
  if (!line.custom_id.is_string()) bad_field("custom_id: expected a text, found " + shown_json(line.custom_id));
  const OrderedJson *method = find_field(object, "method"), *body = find_field(object, "body");
  if (method != nullptr && *method != "POST") bad_field("method: expected \"POST\", found " + shown_json(*method));
  std::string endpoint = endpoint_of(find_field(object, "url"));
  if (body == nullptr || !body->is_object()) {
    bad_field("body: expected an object, found " + (body == nullptr ? "none" : shown_json(*body)));
  }
  line.endpoint = std::move(endpoint);
  line.body = *body;
}

}  // namespace

std::optional<BatchLine> read_batch_line(std::string_view text) {
  if (text.find("\"custom_id\"") == text.npos && text.find("\"body\"") == text.npos) return std::nullopt;
  BatchLine line;
  try {
    const OrderedJson object = parse_exact_json(text, "request", kMaxJsonValues);
    if (!object.is_object() || (!object.contains("custom_id") && !object.contains("body"))) return std::nullopt;
    if (object.contains("custom_id")) line.custom_id = object["custom_id"];
    read_members(object, line);
  } catch (const Error& e) {
    if (line.custom_id.is_null()) return std::nullopt;  // the reader of our own lines names the fault
    line.error = e.what();
  }
  return line;
}

}  // namespace vlcache
