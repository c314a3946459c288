// AllowedOrigins: the sites, extensions and apps whose pages may send requests (`--cors`).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

class AllowedOrigins {
 public:
  // Each of the list is an origin as browsers send it (https://chat.example, http://localhost:3000,
  // chrome-extension://ID, app://obsidian.md, tauri://localhost), with or without a slash at its end. In place of
  // names, https://*.chat.example has all names below chat.example, chrome-extension://* all hosts of a scheme that is
  // no web site's, http://localhost:* all ports. "*" alone: all origins. Throws Error(kInput) for anything else.
  explicit AllowedOrigins(const std::vector<std::string>& list);

  // Upper case and the port of http and https make no difference. False for "null", unless all are allowed.
  bool contains(std::string_view origin) const;

 private:
  // In lower case; the port is "" where it is the scheme's own.
  struct Parts {
    std::string scheme, host, port;
  };
  struct Pattern {
    Parts parts;
    bool any_host = false, below = false, any_port = false;  // below: names that end in "." and the host
  };
  static std::optional<Parts> parts_of(std::string_view origin);
  static std::optional<Pattern> pattern_of(std::string_view text);

  bool all_ = false;
  std::vector<Pattern> patterns_;
};

}  // namespace vlcache
