#include "base/json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/config_json.h"
#include "base/error.h"
#include "base/json_fault.h"
#include "base/lone_surrogates.h"
#include "base/ordered_json.h"
#include "base/request_limits.h"

namespace vlcache {
namespace {

template <typename AnyJson>
std::string shown(const AnyJson& value) {
  const std::string text = value.dump(-1, ' ', false, AnyJson::error_handler_t::replace);
  if (text.size() <= 60) return text;
  size_t end = 57;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  return text.substr(0, end) + "...";
}

}  // namespace

void check_json_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) {
        throw Error(ErrorCode::kInput, std::string(where) + ": JSON nests deeper than " +
                                           std::to_string(kMaxJsonDepth) + " levels (at byte " + std::to_string(i) +
                                           ")");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

std::string shown_json(const Json& value) { return shown(value); }
std::string shown_json(const nlohmann::ordered_json& value) { return shown(value); }

Json parse_json(std::string_view text, std::string_view where) {
  check_json_depth(text, where);
  std::string changed;
  const std::string_view whole = with_whole_pairs(text, changed);
  try {
    return Json::parse(whole.begin(), whole.end());
  } catch (const Json::parse_error& e) {
    throw_json_fault(text, where, e.byte, e.what());
  } catch (const Json::exception& e) {
    throw_json_fault(text, where, std::nullopt, e.what());
  }
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where) {
  return read_ordered_json(text, where, {});
}

nlohmann::ordered_json parse_ordered_or_discard(std::string_view text) {
  try {
    return parse_ordered_json(text, "");
  } catch (const Error&) {
    return nlohmann::ordered_json::value_t::discarded;
  }
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) throw Error(ErrorCode::kNotFound, path.string() + ": no such file");
  if (std::filesystem::is_directory(path, ec))
    throw Error(ErrorCode::kIo, path.string() + ": is a directory, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ErrorCode::kIo, path.string() + ": cannot be opened: " + std::strerror(errno));
  std::string text;
  char chunk[1 << 16];
  while (in.read(chunk, sizeof chunk) || in.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(in.gcount()));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      throw Error(ErrorCode::kInput,
                  path.string() + ": larger than the limit of " + std::to_string(max_bytes) + " bytes");
    }
  }
  if (in.bad()) throw Error(ErrorCode::kIo, path.string() + ": reading failed: " + std::strerror(errno));
  return checked_text(std::move(text), path.string());
}

Json load_json(const std::filesystem::path& path) { return parse_config_json(read_text_file(path), path.string()); }

std::vector<std::string> read_json_lines(
    std::string_view text, const std::string& file,
    const std::function<void(const Json& line, const std::string& where, int number)>& read) {
  std::vector<std::string> problems;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = file + ": line " + std::to_string(number);
    try {
      read(parse_json(line, where), where, number);
    } catch (const Error& e) {
      problems.emplace_back(e.what());
    }
  }
  return problems;
}

JsonObject::JsonObject(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {
  if (!object.is_object())
    throw Error(ErrorCode::kInput, where_ + ": expected a JSON object, found " + object.type_name());
}

const Json* JsonObject::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

void JsonObject::fail(std::string_view key, std::string_view expected) const {
  const Json* value = find(key);
  const std::string found = value == nullptr ? "nothing" : shown_json(*value);
  throw Error(ErrorCode::kInput,
              where_ + ": " + std::string(key) + ": expected " + std::string(expected) + ", found " + found);
}

int64_t JsonObject::integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number()) fail(key, "an integer");
  const double d = value->get<double>();
  if (d != std::floor(d) || std::abs(d) > 9007199254740992.0) fail(key, "an integer");
  return static_cast<int64_t>(d);
}

int64_t JsonObject::integer(std::string_view key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }

double JsonObject::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number()) fail(key, "a number");
  return value->get<double>();
}

double JsonObject::number(std::string_view key, double fallback) const { return has(key) ? number(key) : fallback; }

bool JsonObject::boolean(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string JsonObject::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::string JsonObject::string(std::string_view key, std::string_view fallback) const {
  return has(key) ? string(key) : std::string(fallback);
}

JsonObject JsonObject::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_object()) fail(key, "an object");
  return {*value, where_ + ": " + std::string(key)};
}

}  // namespace vlcache
