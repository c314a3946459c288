#include "analysis/question_line.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/messages/data_uri.h"
#include "api/request_fields.h"
#include "base/error.h"
#include "base/file_url.h"
#include "base/nearest.h"
#include "io/document/page_selection.h"

namespace vlcache {
namespace {

// The key that the line has; null without either.
const char* one_key(const JsonObject& line, const char* a, const char* b) {
  if (line.has(a) && line.has(b)) {
    throw Error(ErrorCode::kInput, line.where() + ": expected either " + a + " or " + b + ", found both");
  }
  return line.has(a) ? a : line.has(b) ? b : nullptr;
}

}  // namespace

const std::vector<std::string>& line_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all{"id",  "prompt", "question", "messages", "images", "image",  "videos",
                                 "raw", "system", "answer",   "answers",  "kind",   "metric", "turns"};
    for (const RequestField& field : request_fields()) {
      if (field.line) all.emplace_back(field.name);
    }
    return all;
  }();
  return keys;
}

bool is_mistyped(std::string_view key) {
  constexpr size_t kFewestLetters = 4;  // shorter words are near many
  const std::vector<std::string>& known = line_keys();
  if (key.size() < kFewestLetters || std::ranges::find(known, key) != known.end()) return false;
  return std::ranges::any_of(known, [key](const std::string& k) {
    const bool near = k.size() >= kFewestLetters && k.size() + 1 >= key.size();  // a long key costs nothing
    return near && (edit_distance(key, k) <= 1 || std::ranges::is_permutation(key, k));
  });
}

std::optional<std::string> asked_text(const JsonObject& line) {
  const char* key = one_key(line, "question", "prompt");
  if (key == nullptr) return std::nullopt;
  return line.string(key);
}

std::vector<std::string> image_paths(const JsonObject& line) {
  const char* key = one_key(line, "images", "image");
  if (key == nullptr) return {};
  const Json& value = *line.find(key);
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) line.fail(key, "a string or a list of strings");
  std::vector<std::string> paths;
  for (const Json& item : value) {
    if (!item.is_string()) line.fail(key, "a list of strings");
    paths.push_back(item.get<std::string>());
  }
  return paths;
}

std::string checked_path(std::string path, const std::string& where) {
  if (const std::optional<std::string> named = path_of_file_url(path)) {
    path = *named;
  } else if (path.starts_with("file://")) {
    path.erase(0, 7);
  }
  if (const size_t nul = path.find('\0'); nul != std::string::npos) {
    throw Error(ErrorCode::kInput,
                where + ": an image's path: expected no NUL character, found one after '" + path.substr(0, nul) + "'");
  }
  return path;
}

std::string resolved_path(const std::filesystem::path& folder, const std::string& path) {
  if (folder.empty() || path.empty() || path.starts_with('/') || is_data_uri(path)) return path;
  const std::string beside = (folder / path).string();
  std::error_code ec;
  const auto exists = [&](const std::string& file) { return std::filesystem::exists(split_pages(file).path, ec); };
  return exists(beside) || !exists(path) ? beside : path;
}

}  // namespace vlcache
