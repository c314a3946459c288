// The address of a Redis server or cluster and the credentials for it:
// redis://[user:password@]host[:port][/db], redis+cluster://[user:password@]host[:port],host[:port]...; rediss:// and
// rediss+cluster:// connect by TLS; valkey is another name of redis in these; unix://[user:password@]/path[?db=N] is a
// socket of this machine.
#pragma once

#include <compare>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

struct RedisNode {
  std::string host;  // or the absolute path of a socket
  int port = 6379;

  // Whether it is a socket of this machine.
  bool local() const { return host.starts_with('/'); }
  // "host:port", "[::1]:port", "unix:///path".
  std::string shown() const;
  auto operator<=>(const RedisNode&) const = default;
};

struct RedisAddress {
  std::vector<RedisNode> seeds;  // one server; of a cluster, one or more of its nodes
  int db = 0;
  std::string user, password;  // empty: none; a user needs a password
  bool tls = false, cluster = false;

  // "redis://host:port/db", "unix:///path?db=1": safe to show, without user and password.
  std::string shown() const;
};

// Whether a host is an IPv4 or IPv6 address, and not a name.
bool is_ip_address(std::string_view host);

// Whether the text names a Redis server or cluster, and not a folder.
bool is_redis_url(std::string_view text);

// Parses a URL; user and password may be %-encoded, an IPv6 address stands in brackets. `password_file` (empty: none)
// holds the password instead, in its first line. Throws Error(kInput), which never repeats text that may be the
// password.
RedisAddress parse_redis_url(std::string_view url, const std::filesystem::path& password_file = {});

// Patterns of hosts, separated by commas: names and addresses, *.example.com, 10.0.0.0/8. Throws Error(kInput).
std::vector<std::string> parse_host_patterns(std::string_view text);
// Whether one of these patterns covers a host name or address.
bool host_matches(const std::vector<std::string>& patterns, std::string_view host);

}  // namespace vlcache
