// The address of a Redis server and the credentials for it: redis://[user:password@]host[:port][/db].
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace vlcache {

struct RedisAddress {
  std::string host;
  int port = 6379;
  int db = 0;
  std::string user, password;  // empty: none; a user needs a password

  // "redis://host:port/db": safe to show, without user and password.
  std::string shown() const;
};

// Whether the text names a Redis server, and not a folder.
bool is_redis_url(std::string_view text);

// Parses a URL; user and password may be %-encoded, an IPv6 address stands in brackets. `password_file` (empty: none)
// holds the password instead, in its first line. Throws Error(kInput), which never repeats text that may be the
// password.
RedisAddress parse_redis_url(std::string_view url, const std::filesystem::path& password_file = {});

}  // namespace vlcache
