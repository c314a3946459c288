// Reads fields of requests, for all endpoints. Errors are Error(kInput) whose message begins with the field's name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace vlcache {

[[noreturn]] void bad_field(const std::string& what);

// A request's body, which must be a JSON object of at most kMaxJsonValues values.
nlohmann::ordered_json parse_body(std::string_view text);

// Null if the field is missing or null: null counts as left out, as in most clients' libraries.
const nlohmann::ordered_json* find_field(const nlohmann::ordered_json& object, const char* key);

// A required field: "WHERE.KEY: expected a string". A text belongs to the object.
const std::string& text_field(const nlohmann::ordered_json& object, const char* key, const std::string& where);
std::string string_field(const nlohmann::ordered_json& object, const char* key, const std::string& where);

// "KEY: expected true or false".
bool bool_field(const nlohmann::ordered_json& object, const char* key, bool fallback);

// Throws Error(kInput) for a conversation of more than kMaxMessages messages, or items, in the field `name`.
void check_n_messages(size_t n, const char* name);

// "WHERE[I]".
std::string item_name(const std::string& where, size_t i);

}  // namespace vlcache
