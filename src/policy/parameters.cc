// Splitting and checking "name:key=value,...".
#include "policy/parameters.h"

#include <charconv>

#include "base/error.h"

namespace vlcache {

Parameters Parameters::parse(std::string_view text) {
  Parameters p;
  const size_t colon = text.find(':');
  p.name_ = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw Error(ErrorCode::kInput,
                  "'" + std::string(text) + "': expected name:key=value,key=value, found '" + std::string(item) + "'");
    }
    if (!p.values_.emplace(item.substr(0, equals), item.substr(equals + 1)).second) {
      throw Error(ErrorCode::kInput,
                  "'" + std::string(text) + "': '" + std::string(item.substr(0, equals)) + "' is given twice");
    }
  }
  return p;
}

int64_t Parameters::integer(std::string_view key, int64_t fallback, int64_t at_least) {
  known_ += (known_.empty() ? "" : ", ") + std::string(key);
  const auto it = values_.find(key);
  if (it == values_.end()) return fallback;
  const std::string& s = it->second;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size() || value < at_least || value > INT32_MAX) {
    throw Error(ErrorCode::kInput, name_ + ": " + std::string(key) + ": expected an integer from " +
                                       std::to_string(at_least) + " to " + std::to_string(INT32_MAX) + ", found '" + s +
                                       "'");
  }
  return value;
}

void Parameters::reject_unknown() const {
  for (const auto& [key, value] : values_) {
    if ((", " + known_ + ",").find(", " + key + ",") != std::string::npos) continue;
    throw Error(ErrorCode::kInput,
                name_ + ": unknown parameter '" + key + "'; it has " + (known_.empty() ? "none" : known_));
  }
}

}  // namespace vlcache
