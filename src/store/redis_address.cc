#include "store/redis_address.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::string_view kScheme = "redis://";
constexpr size_t kMaxPasswordBytes = 4096;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kInput, "Redis: expected redis://[user:password@]host[:port][/db], found " + why);
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

void take_host(std::string_view text, RedisAddress& address) {
  size_t end = text.find(':');
  if (text.starts_with('[')) {
    const size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) refuse("a [ without a ]");
    address.host = text.substr(1, bracket - 1);
    end = bracket + 1;
  } else {
    address.host = text.substr(0, end);
  }
  if (end < text.size()) {
    if (text[end] != ':') refuse("something between ] and the port");
    const auto number = parse_number(text.substr(end + 1), 65535);
    if (!number || *number == 0) refuse("a port that is no number from 1 to 65535");
    address.port = *number;
  }
  if (address.host.empty()) refuse("no host");
  for (const char c : address.host) {
    if (c <= ' ' || c > '~') refuse("a host with a character that no name has");
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
  if (!line.empty() && line.size() <= kMaxPasswordBytes) return line;
  throw Error(ErrorCode::kInput, path.string() + ": expected Redis' password in the first line, found " +
                                     (line.empty() ? "nothing" : "more than 4096 bytes"));
}

}  // namespace

std::string RedisAddress::shown() const {
  const bool brackets = host.find(':') != std::string::npos;
  return std::string(kScheme) + (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port) + "/" +
         std::to_string(db);
}

bool is_redis_url(std::string_view text) { return text.starts_with(kScheme); }

RedisAddress parse_redis_url(std::string_view url, const std::filesystem::path& password_file) {
  if (!is_redis_url(url)) refuse("something that does not begin with redis://");
  url.remove_prefix(kScheme.size());
  RedisAddress address;
  // The last @: a password may hold one that was not encoded.
  if (const size_t at = url.rfind('@'); at != std::string_view::npos) {
    take_user(url.substr(0, at), address);
    url.remove_prefix(at + 1);
  }
  if (const size_t slash = url.find('/'); slash != std::string_view::npos) {
    const std::string_view db = url.substr(slash + 1);
    const auto number = parse_number(db, 1 << 20);
    if (!db.empty() && !number) refuse("a database that is no number");
    address.db = number.value_or(0);
    url = url.substr(0, slash);
  }
  take_host(url, address);
  if (!password_file.empty()) {
    if (!address.password.empty()) refuse("a password beside a file with one");
    address.password = read_password(password_file);
  }
  if (!address.user.empty() && address.password.empty()) refuse("a user without a password");
  return address;
}

}  // namespace vlcache
