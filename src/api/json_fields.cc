#include "api/json_fields.h"

#include "base/error.h"
#include "base/exact_json.h"
#include "base/request_limits.h"

namespace vlcache {

using OrderedJson = nlohmann::ordered_json;

void bad_field(const std::string& what) { throw Error(ErrorCode::kInput, what); }

OrderedJson parse_body(std::string_view text) {
  OrderedJson body = parse_exact_json(text, "the request's body", kMaxJsonValues);
  if (!body.is_object()) {
    bad_field(std::string("the request's body: expected a JSON object, found ") + body.type_name());
  }
  return body;
}

const OrderedJson* find_field(const OrderedJson& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

const std::string& text_field(const OrderedJson& object, const char* key, const std::string& where) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr || !value->is_string()) bad_field(where + "." + key + ": expected a string");
  return value->get_ref<const std::string&>();
}

std::string string_field(const OrderedJson& object, const char* key, const std::string& where) {
  return text_field(object, key, where);
}

bool bool_field(const OrderedJson& object, const char* key, bool fallback) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) bad_field(std::string(key) + ": expected true or false");
  return value->get<bool>();
}

void check_n_messages(size_t n, const char* name) {
  if (n <= kMaxMessages) return;
  bad_field(std::string(name) + ": expected at most " + std::to_string(kMaxMessages) + ", found " + std::to_string(n));
}

std::string item_name(const std::string& where, size_t i) { return where + "[" + std::to_string(i) + "]"; }

}  // namespace vlcache
