// URLs of files (RFC 8089), in the spellings that programs write.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vlcache {

// "%41" becomes "A". Returns nullopt for a % without two hexadecimal digits, or a zero byte.
std::optional<std::string> decode_percent(std::string_view text);

// Whether the scheme is file:, in any case.
bool is_file_url(std::string_view text);

// The absolute path that file:///PATH, file://localhost/PATH or file:/PATH names, percent-decoded; nullopt for anything
// else: another host, a relative path, an escape that decode_percent refuses. Nothing is said about where it leads.
std::optional<std::string> path_of_file_url(std::string_view url);

// file:// and the path, with % escaped.
std::string file_url_of(std::string_view path);

}  // namespace vlcache
