#include "base/file_url.h"

#include <algorithm>
#include <charconv>

namespace vlcache {
namespace {

// Whether the text begins so, in any case; `beginning` is in lower case.
bool begins(std::string_view text, std::string_view beginning) {
  const auto lower = [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(text.substr(0, beginning.size()), beginning, {}, lower);
}

}  // namespace

std::optional<std::string> decode_percent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() < 2 || error != std::errc() || end != digits.data() + 2 || byte == 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

bool is_file_url(std::string_view text) { return begins(text, "file:"); }

std::optional<std::string> path_of_file_url(std::string_view url) {
  if (!is_file_url(url)) return std::nullopt;
  std::string_view path = url.substr(5);
  if (begins(path, "//localhost/")) {
    path.remove_prefix(11);
  } else if (path.starts_with("//")) {
    path.remove_prefix(2);
  }
  if (!path.starts_with('/') || path.find('\0') != path.npos) return std::nullopt;
  return decode_percent(path);
}

std::string file_url_of(std::string_view path) {
  std::string url = "file://";
  for (const char c : path) url += c == '%' ? std::string("%25") : std::string(1, c);
  return url;
}

}  // namespace vlcache
