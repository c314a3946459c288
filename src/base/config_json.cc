#include "base/config_json.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::string_view kBom = "\xef\xbb\xbf", kPointer = "version https://git-lfs";
constexpr size_t kLongestPointer = 1024;  // by its specification

// The text with quotes around each NaN, Infinity and -Infinity outside strings; "" if it has none.
std::string with_quoted_numbers(std::string_view text) {
  constexpr std::array<std::string_view, 3> kWords{"-Infinity", "Infinity", "NaN"};
  std::string quoted;
  size_t copied = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string) continue;
    for (const std::string_view word : kWords) {
      if (!text.substr(i).starts_with(word)) continue;
      quoted.append(text, copied, i - copied).append("\"").append(word).append("\"");
      copied = i + word.size();
      i = copied - 1;
      break;
    }
  }
  if (copied > 0) quoted.append(text, copied);
  return quoted;
}

template <typename Parse>
auto parse_with_names(std::string_view text, const Parse& parse) {
  try {
    return parse(text);
  } catch (const Error&) {
    const std::string quoted = with_quoted_numbers(text);
    if (quoted.empty()) throw;
    try {
      return parse(quoted);
    } catch (const Error&) {
    }
    throw;  // the places of the text itself
  }
}

}  // namespace

Json parse_config_json(std::string_view text, std::string_view where) {
  return parse_with_names(text, [&](std::string_view t) { return parse_json(t, where); });
}

nlohmann::ordered_json parse_ordered_config_json(std::string_view text, std::string_view where) {
  return parse_with_names(text, [&](std::string_view t) { return parse_ordered_json(t, where); });
}

std::string_view without_bom(std::string_view text) {
  if (text.starts_with(kBom)) text.remove_prefix(kBom.size());
  return text;
}

std::string lfs_pointer_reason(std::string_view text) {
  if (text.size() > kLongestPointer || !text.starts_with(kPointer)) return "";
  return "it is a Git LFS pointer, not the file itself: run git lfs pull in its folder, or fetch the model with hf "
         "download";
}

std::string checked_text(std::string text, const std::string& path) {
  if (text.starts_with(kBom)) text.erase(0, kBom.size());
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    throw Error(ErrorCode::kInput, path + ": expected text in UTF-8, found UTF-16");
  }
  if (const std::string reason = lfs_pointer_reason(text); !reason.empty()) {
    throw Error(ErrorCode::kInput, path + ": " + reason);
  }
  return text;
}

}  // namespace vlcache
