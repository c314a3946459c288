#include "store/redis/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/config_json.h"
#include "base/error.h"

namespace vlcache {
namespace {

struct Scheme {
  std::string_view text;
  bool tls, cluster, local;
};
// The first of each kind is the one that is shown. Clients of Redis and Valkey do not agree on a name for sockets.
constexpr std::array<Scheme, 12> kSchemes = {{{"redis://", false, false, false},
                                              {"rediss://", true, false, false},
                                              {"redis+cluster://", false, true, false},
                                              {"rediss+cluster://", true, true, false},
                                              {"unix://", false, false, true},
                                              {"valkey://", false, false, false},
                                              {"valkeys://", true, false, false},
                                              {"valkey+cluster://", false, true, false},
                                              {"valkeys+cluster://", true, true, false},
                                              {"redis+unix://", false, false, true},
                                              {"redis+socket://", false, false, true},
                                              {"redis-socket://", false, false, true}}};
constexpr size_t kMaxSocketPath = 107;  // the limit of Linux
constexpr size_t kMaxPasswordBytes = 4096;
constexpr size_t kMaxSeeds = 256, kMaxPatterns = 256;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(
      ErrorCode::kInput,
      "Redis: expected redis://[user:password@]host[:port][/db], redis+cluster://[user:password@]host[:port],..., "
      "the same with rediss, valkey or valkeys, or unix://[user:password@]/path[?db=N], found " +
          why);
}

const Scheme* scheme_of(std::string_view url) {
  for (const Scheme& scheme : kSchemes) {
    if (url.starts_with(scheme.text)) return &scheme;
  }
  return nullptr;
}

std::optional<int> parse_number(std::string_view text, int limit) {
  int n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 0 || n > limit) return std::nullopt;
  return n;
}

// %41 is A. nullopt if the two digits are missing, or mean a zero byte.
std::optional<std::string> decoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    unsigned value = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2 || value == 0) return std::nullopt;
    plain += static_cast<char>(value);
    i += 2;
  }
  return plain;
}

void take_user(std::string_view text, RedisAddress& address) {
  const size_t colon = text.find(':');
  const auto user = decoded(text.substr(0, colon));
  const auto password = decoded(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  if (!user || !password) refuse("a % without two digits before the @");
  address.user = *user;
  address.password = *password;
}

int database_of(std::string_view text) {
  const auto number = parse_number(text, 1 << 20);
  if (!number) refuse("a database that is no number");
  return *number;
}

// ?db=2, by the names that clients of Redis use.
void take_query(std::string_view text, RedisAddress& address) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, equals);
    const auto value = decoded(part.substr(std::min(equals + 1, part.size())));
    if (!value) refuse("a % without two digits after the ?");
    if (name == "db" || name == "database" || name == "virtual_host") {
      address.db = database_of(*value);
    } else if (name == "username" || name == "user") {
      address.user = *value;
    } else if (name == "password") {
      address.password = *value;
    } else {
      refuse("something other than db=N after the ?");
    }
  }
}

// A socket of this machine: its absolute path, in place of a host.
void take_path(std::string_view text, RedisAddress& address) {
  const auto path = decoded(text);
  if (!path) refuse("a % without two digits in the path of a socket");
  if (!path->starts_with('/')) refuse("a socket without an absolute path: unix:///path");
  if (path->size() > kMaxSocketPath) refuse("a path of more than 107 bytes, which no socket has");
  address.seeds.push_back({.host = *path});
}

// As it stands in a URL.
std::string encoded_path(std::string_view path) {
  constexpr std::string_view kPlain = "/._-~+:,";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string text;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || kPlain.find(c) != std::string_view::npos) {
      text += c;
    } else {
      text += {'%', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return text;
}

RedisNode parse_node(std::string_view text) {
  RedisNode node;
  size_t end = text.find(':');
  if (text.starts_with('[')) {
    const size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) refuse("a [ without a ]");
    node.host = text.substr(1, bracket - 1);
    end = bracket + 1;
  } else {
    node.host = text.substr(0, end);
  }
  if (end < text.size()) {
    if (text[end] != ':') refuse("something between ] and the port");
    const auto number = parse_number(text.substr(end + 1), 65535);
    if (!number || *number == 0) refuse("a port that is no number from 1 to 65535");
    node.port = *number;
  }
  if (node.host.empty()) refuse("no host");
  for (const char c : node.host) {
    if (c <= ' ' || c > '~') refuse("a host with a character that no name has");
  }
  return node;
}

void take_seeds(std::string_view text, RedisAddress& address) {
  while (true) {
    const size_t comma = text.find(',');
    const RedisNode node = parse_node(text.substr(0, comma));
    if (std::ranges::find(address.seeds, node) == address.seeds.end()) address.seeds.push_back(node);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (!address.cluster) refuse("several hosts, which only redis+cluster:// takes");
    if (address.seeds.size() > kMaxSeeds) refuse("more than 256 hosts");
  }
}

std::string read_password(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ErrorCode::kInput, path.string() + ": the file with Redis' password cannot be read");
  std::string line(kMaxPasswordBytes + 2, '\0');
  in.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(in.gcount()));
  line.resize(std::min(line.size(), line.find('\n')));
  if (line.ends_with('\r')) line.pop_back();
  line.erase(0, line.size() - without_bom(line).size());
  if (!line.empty() && line.size() <= kMaxPasswordBytes) return line;
  throw Error(ErrorCode::kInput, path.string() + ": expected Redis' password in the first line, found " +
                                     (line.empty() ? "nothing" : "more than 4096 bytes"));
}

// An address as 16 bytes, IPv4 as it is written within IPv6. nullopt: a name.
std::optional<std::array<uint8_t, 16>> ip_bytes(std::string_view host) {
  const std::string text(host);
  std::array<uint8_t, 16> bytes{};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  bytes[10] = bytes[11] = 0xff;
  if (inet_pton(AF_INET, text.c_str(), bytes.data() + 12) == 1) return bytes;
  return std::nullopt;
}

// The number of leading bits that count in "10.0.0.0/8", of 128. nullopt: not such a pattern.
std::optional<int> network_bits(std::string_view pattern, size_t slash) {
  const std::string_view network = pattern.substr(0, slash);
  const int n = network.find(':') == std::string_view::npos ? 32 : 128;
  const auto bits = parse_number(pattern.substr(slash + 1), n);
  if (!bits || !ip_bytes(network)) return std::nullopt;
  return 128 - n + *bits;
}

bool in_network(std::string_view pattern, size_t slash, std::string_view host) {
  const auto network = ip_bytes(pattern.substr(0, slash)), address = ip_bytes(host);
  const auto bits = network_bits(pattern, slash);
  if (!network || !address || !bits) return false;
  for (size_t i = 0; i < static_cast<size_t>(*bits); ++i) {
    if (((*network)[i / 8] ^ (*address)[i / 8]) >> (7 - i % 8) & 1) return false;
  }
  return true;
}

bool equal_names(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

std::string RedisNode::shown() const {
  if (local()) return "unix://" + encoded_path(host);
  return (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string RedisAddress::shown() const {
  if (seeds.front().local()) return seeds.front().shown() + (db == 0 ? "" : "?db=" + std::to_string(db));
  const auto is_mine = [this](const Scheme& scheme) { return scheme.tls == tls && scheme.cluster == cluster; };
  std::string text(std::ranges::find_if(kSchemes, is_mine)->text);
  for (const RedisNode& node : seeds) text += (&node == seeds.data() ? "" : ",") + node.shown();
  return cluster ? text : text + "/" + std::to_string(db);
}

bool is_ip_address(std::string_view host) { return ip_bytes(host).has_value(); }

bool is_redis_url(std::string_view text) { return scheme_of(text) != nullptr; }

RedisAddress parse_redis_url(std::string_view url, const std::filesystem::path& password_file) {
  const Scheme* const scheme = scheme_of(url);
  if (scheme == nullptr) refuse("something that begins with none of these");
  url.remove_prefix(scheme->text.size());
  RedisAddress address;
  address.tls = scheme->tls;
  address.cluster = scheme->cluster;
  // The last @: a password may hold one that was not encoded. A path may, too: there, the @ before the first /.
  const size_t at = !scheme->local ? url.rfind('@') : url.starts_with('/') ? url.npos : url.find("@/");
  if (at != std::string_view::npos) {
    take_user(url.substr(0, at), address);
    url.remove_prefix(at + 1);
  }
  const size_t query = std::min(url.find('?'), url.size());
  const std::string_view options = url.substr(std::min(query + 1, url.size()));
  url = url.substr(0, query);
  if (scheme->local) {
    take_path(url, address);
  } else {
    if (const size_t slash = url.find('/'); slash != std::string_view::npos) {
      if (const std::string_view db = url.substr(slash + 1); !db.empty()) address.db = database_of(db);
      url = url.substr(0, slash);
    }
    take_seeds(url, address);
  }
  take_query(options, address);
  if (address.cluster && address.db != 0) refuse("a database, of which a cluster has only 0");
  if (!password_file.empty()) {
    if (!address.password.empty()) refuse("a password beside a file with one");
    address.password = read_password(password_file);
  }
  if (!address.user.empty() && address.password.empty()) refuse("a user without a password");
  return address;
}

std::vector<std::string> parse_host_patterns(std::string_view text) {
  const auto refuse_pattern = [](std::string_view part) {
    throw Error(ErrorCode::kInput,
                "expected hosts such as 10.0.0.7, 10.0.0.0/8, node-1 or *.example.com, separated by commas, found '" +
                    std::string(part) + "'");
  };
  std::vector<std::string> patterns;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (part.starts_with('[') && part.ends_with(']')) part = part.substr(1, part.size() - 2);
    const size_t slash = part.find('/'), star = part.find('*');
    const bool valid = slash != std::string_view::npos ? network_bits(part, slash).has_value()
                       : star != std::string_view::npos
                           ? part.starts_with("*.") && part.size() > 2 && part.rfind('*') == 0
                           : !part.empty();
    const bool printable = std::ranges::all_of(part, [](char c) { return c > ' ' && c <= '~'; });
    if (!valid || !printable || patterns.size() == kMaxPatterns) refuse_pattern(part);
    patterns.emplace_back(part);
  }
  return patterns;
}

bool host_matches(const std::vector<std::string>& patterns, std::string_view host) {
  const auto ip = ip_bytes(host);
  return std::ranges::any_of(patterns, [&](std::string_view pattern) {
    if (const size_t slash = pattern.find('/'); slash != std::string_view::npos)
      return in_network(pattern, slash, host);
    if (!pattern.starts_with('*')) return equal_names(pattern, host) || (ip && ip_bytes(pattern) == ip);
    pattern.remove_prefix(1);
    return !ip && host.size() > pattern.size() && equal_names(host.substr(host.size() - pattern.size()), pattern);
  });
}

}  // namespace vlcache
