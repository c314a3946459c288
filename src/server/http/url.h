// URLs of http and https, strictly: what is written in more ways than one is no URL here, since who checks an address
// must see what who connects to it sees.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vlcache {

struct Url {
  bool tls = false;
  std::string host;         // lower case; addresses as they are written usually, IPv6 without brackets
  bool is_address = false;  // the host is one
  uint16_t port = 0;
  std::string path;               // begins with /; no segment of it is . or ..
  std::string query;              // with its ?, or empty
  std::string authority() const;  // as a Host header names it
};

// None: not an absolute URL, or one with a user, a fragment, or characters that are to be escaped.
std::optional<Url> parse_url(std::string_view text);

// "%41" is "A". None: a % without two hexadecimal digits, or a zero.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace vlcache
