#include "base/json_text.h"

#include <nlohmann/json.hpp>

namespace vlcache {

std::string text_in(const nlohmann::ordered_json& value, std::string_view key) {
  if (!value.is_object()) return "";
  const auto field = value.find(key);
  return field != value.end() && field->is_string() ? field->get<std::string>() : "";
}

}  // namespace vlcache
