// Parses http and https URLs strictly: text that two programs could read as different URLs is rejected, because the
// address that is checked must be the one connected to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vlcache {

struct Url {
  bool tls = false;
  std::string host;         // lower case; addresses in their usual form, IPv6 without brackets
  bool is_address = false;  // the host is an address
  uint16_t port = 0;
  std::string path;               // begins with /; no segment is . or ..
  std::string query;              // with its ?, or empty
  std::string authority() const;  // as a Host header has it
};

// Returns nullopt unless the text is an absolute URL without a user, a fragment, or characters that must be escaped.
std::optional<Url> parse_url(std::string_view text);

// A http or https URL as browsers send it: without space at its ends, the scheme in lower case, and spaces, quotes,
// braces and bytes beyond ASCII in its path and query as %XX. Escapes, control characters, \ and # stay as they are, as
// do other texts.
std::string with_escapes(std::string_view url);

}  // namespace vlcache
