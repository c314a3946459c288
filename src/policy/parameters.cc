#include "policy/parameters.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"

namespace vlcache {
namespace {

std::string list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

std::string shown(double x) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

}  // namespace

Parameters Parameters::parse(std::string_view text) {
  Parameters p;
  p.text_ = text;
  const size_t colon = text.find(':');
  const std::string_view head = text.substr(0, colon);
  const size_t at = head.find('@');
  p.name_ = head.substr(0, at);
  if (at != std::string_view::npos) {
    p.preset_ = head.substr(at + 1);
    if (p.preset_.empty()) {
      throw Error(ErrorCode::kInput, "'" + p.text_ + "': expected the name of a preset after '@', found none");
    }
  }
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw Error(ErrorCode::kInput,
                  "'" + p.text_ + "': expected name:key=value,key=value, found '" + std::string(item) + "'");
    }
    if (!p.values_.emplace(item.substr(0, equals), item.substr(equals + 1)).second) {
      throw Error(ErrorCode::kInput, "'" + p.text_ + "': '" + std::string(item.substr(0, equals)) + "' is given twice");
    }
  }
  return p;
}

const std::string* Parameters::find(std::string_view key) {
  if (std::ranges::find(keys_, key) == keys_.end()) keys_.emplace_back(key);
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void Parameters::fail(std::string_view key, const std::string& expected) const {
  throw Error(ErrorCode::kInput, name_ + ": " + std::string(key) + ": expected " + expected + ", found '" +
                                     values_.find(key)->second + "'");
}

int64_t Parameters::integer(std::string_view key, int64_t fallback, int64_t at_least, int64_t at_most) {
  const std::string* s = find(key);
  if (s == nullptr) return fallback;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s->data(), s->data() + s->size(), value);
  if (error != std::errc() || end != s->data() + s->size() || value < at_least || value > at_most) {
    fail(key, "an integer from " + std::to_string(at_least) + " to " + std::to_string(at_most));
  }
  return value;
}

int64_t Parameters::odd(std::string_view key, int64_t fallback) {
  const int64_t value = integer(key, fallback, 1);
  if (value % 2 == 0) fail(key, "an odd integer");
  return value;
}

double Parameters::number(std::string_view key, double fallback, double low, double high) {
  const std::string* s = find(key);
  if (s == nullptr) return fallback;
  double value = 0;
  const auto [end, error] = std::from_chars(s->data(), s->data() + s->size(), value);
  const bool whole = error == std::errc() && end == s->data() + s->size();
  if (!whole || !(value >= low) || !(value <= high)) fail(key, "a number from " + shown(low) + " to " + shown(high));
  return value;
}

std::string_view Parameters::word(std::string_view key, std::string_view fallback,
                                  std::initializer_list<std::string_view> words) {
  const std::string* s = find(key);
  if (s == nullptr) return fallback;
  const auto* it = std::ranges::find(words, *s);
  if (it == words.end()) fail(key, "one of " + list({words.begin(), words.end()}));
  return *it;
}

std::filesystem::path Parameters::file(std::string_view key, std::string_view fallback) {
  if (const std::string* s = find(key)) return *s;
  return model_ == nullptr ? std::filesystem::path() : model_->companion(fallback);
}

std::string_view Parameters::preset(std::initializer_list<std::string_view> known) {
  for (const std::string_view name : known) {
    if (std::ranges::find(presets_, name) == presets_.end()) presets_.emplace_back(name);
  }
  const auto* it = std::ranges::find(known, preset_);
  return it == known.end() ? "" : *it;
}

void Parameters::inherit_preset(const Parameters& other) {
  if (!preset_.empty() && preset_ != other.preset_) return;
  preset_ = other.preset_;
  inherited_ = true;
}

Parameters Parameters::for_part(std::string_view name, std::string_view preset) const {
  Parameters p = *this;
  p.name_ = name;
  if (!preset.empty()) p.preset_ = preset;
  return p;
}

std::string Parameters::resolved() const {
  std::string text = name_;
  if (has_preset()) text += "@" + preset_;
  char separator = ':';
  for (const auto& [key, value] : values_) {
    if (std::ranges::find(keys_, key) == keys_.end()) continue;
    text += std::exchange(separator, ',') + key + "=" + value;
  }
  return text;
}

void Parameters::know(const Parameters& other) {
  keys_.insert(keys_.end(), other.keys_.begin(), other.keys_.end());
  presets_.insert(presets_.end(), other.presets_.begin(), other.presets_.end());
}

void Parameters::reject_unknown() const {
  for (const auto& [key, value] : values_) {
    if (std::ranges::find(keys_, key) != keys_.end()) continue;
    throw Error(ErrorCode::kInput,
                name_ + ": unknown parameter '" + key + "'" + did_you_mean(key, keys_) + "; it has " + list(keys_));
  }
  if (preset_.empty() || inherited_ || std::ranges::find(presets_, preset_) != presets_.end()) return;
  throw Error(ErrorCode::kInput, name_ + ": unknown preset '" + preset_ + "'" + did_you_mean(preset_, presets_) +
                                     "; it has " + list(presets_));
}

}  // namespace vlcache
