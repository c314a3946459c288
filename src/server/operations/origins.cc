#include "server/operations/origins.h"

#include <algorithm>

#include "base/error.h"
#include "server/http/http_server.h"
#include "server/operations/access.h"

namespace vlcache {
namespace {

constexpr std::string_view kSchemeEnd = "://";

bool is_web(std::string_view scheme) { return scheme == "http" || scheme == "https"; }

// RFC 3986 3.1, in lower case. Pages of the schemes that are left out have no origin but "null".
bool has_origins(std::string_view scheme) {
  for (const char* opaque : {"file", "ftp", "data", "blob", "about", "javascript", "ws", "wss"}) {
    if (scheme == opaque) return false;
  }
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto fits = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.'; };
  return !scheme.empty() && letter(scheme[0]) && std::ranges::all_of(scheme, fits);
}

}  // namespace

std::optional<AllowedOrigins::Parts> AllowedOrigins::parts_of(std::string_view origin) {
  const size_t end = origin.find(kSchemeEnd);
  if (end == origin.npos) return std::nullopt;
  Parts parts{.scheme = lower_case(origin.substr(0, end)), .host = "", .port = ""};
  const std::string authority = lower_case(origin.substr(end + kSchemeEnd.size()));
  if (!has_origins(parts.scheme) || host_name(authority).empty() || authority.ends_with(':')) return std::nullopt;
  const size_t from = authority.starts_with('[') ? authority.find(']') : 0;
  const size_t colon = authority.find(':', from);
  parts.host = authority.substr(0, colon);
  if (colon != authority.npos) parts.port = authority.substr(colon + 1);
  if (parts.port == (parts.scheme == "https" ? "443" : "80") && is_web(parts.scheme)) parts.port.clear();
  return parts;
}

std::optional<AllowedOrigins::Pattern> AllowedOrigins::pattern_of(std::string_view text) {
  Pattern pattern;
  const size_t end = text.find(kSchemeEnd);
  if (end == text.npos) return std::nullopt;
  const std::string_view start = text.substr(0, end + kSchemeEnd.size());
  std::string_view authority = text.substr(start.size());
  if (authority.ends_with('/')) authority.remove_suffix(1);
  pattern.any_port = authority.ends_with(":*");
  if (pattern.any_port) authority.remove_suffix(2);
  pattern.any_host = authority == "*" && !is_web(lower_case(text.substr(0, end)));
  pattern.below = authority.starts_with("*.");
  if (pattern.any_host) authority = "any";
  if (pattern.below) authority.remove_prefix(2);
  std::optional<Parts> parts = parts_of(std::string(start) + std::string(authority));
  if (!parts || (pattern.any_port && !parts->port.empty()) || (pattern.below && is_address(host_name(parts->host)))) {
    return std::nullopt;
  }
  pattern.parts = *std::move(parts);
  return pattern;
}

AllowedOrigins::AllowedOrigins(const std::vector<std::string>& list) {
  for (const std::string& text : list) {
    if (text == "*") {
      all_ = true;
      continue;
    }
    std::optional<Pattern> pattern = pattern_of(text);
    if (!pattern) {
      throw Error(ErrorCode::kInput,
                  "--cors: expected an origin such as https://chat.example, https://*.chat.example or "
                  "chrome-extension://ID, or *, found '" +
                      text.substr(0, 100) + "'");
    }
    patterns_.push_back(*std::move(pattern));
  }
}

bool AllowedOrigins::contains(std::string_view origin) const {
  if (all_) return true;
  if (patterns_.empty()) return false;
  const std::optional<Parts> asked = parts_of(origin);
  return asked && std::ranges::any_of(patterns_, [&](const Pattern& pattern) {
           const auto& [scheme, host, port] = pattern.parts;
           const bool is_below = asked->host.size() > host.size() + 1 && asked->host.ends_with("." + host);
           return asked->scheme == scheme && (pattern.any_port || asked->port == port) &&
                  (pattern.any_host || (pattern.below ? is_below : asked->host == host));
         });
}

}  // namespace vlcache
