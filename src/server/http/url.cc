#include "server/http/url.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>

#include "base/file_url.h"

namespace vlcache {
namespace {

constexpr size_t kMaxUrl = 8192, kMaxHost = 253;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_target(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return c > ' ' && c <= '~' && std::string_view("\"<>\\^`{|}#").find(c) == std::string_view::npos;
  });
}

// Whether a path could lead up: a segment . or .., also if a server decodes an encoded one, / or \ before it looks.
bool climbs(std::string_view path) {
  const std::optional<std::string> plain = decode_percent(path);
  if (!plain || std::ranges::count(*plain, '/') != std::ranges::count(path, '/')) return true;
  if (plain->find('\\') != plain->npos) return true;
  for (std::string_view rest = *plain; !rest.empty();) {
    const size_t end = std::min(rest.find('/'), rest.size());
    if (rest.substr(0, end) == "." || rest.substr(0, end) == "..") return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

// "host:port" or "[v6]:port"; the scheme's port by default.
bool read_authority(std::string_view text, Url& url) {
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == text.npos) return false;
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else if (const size_t colon = text.find(':'); colon != text.npos) {
    host = text.substr(0, colon);
    port = text.substr(colon);
  }
  url.port = url.tls ? 443 : 80;
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), url.port);
    if (port[0] != ':' || port.size() < 2 || error != std::errc() || end != port.data() + port.size()) return false;
    if (url.port == 0) return false;
  }
  boost::system::error_code no_address;
  const boost::asio::ip::address address = boost::asio::ip::make_address(std::string(host), no_address);
  url.is_address = !no_address;
  if (url.is_address) {
    url.host = address.to_string();
    return address.is_v6() == text.starts_with('[') && host.find('%') == host.npos;
  }
  const auto plain = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || c == '-' || c == '.' || c == '_'; };
  url.host = host;
  for (char& c : url.host) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  const bool dotted = url.host.starts_with('.') || url.host.ends_with('.') || url.host.find("..") != url.host.npos;
  return !text.starts_with('[') && !url.host.empty() && url.host.size() <= kMaxHost && !dotted &&
         std::ranges::all_of(url.host, plain);
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.find(':') == host.npos ? host : "[" + host + "]";
  return port == (tls ? 443 : 80) ? name : name + ":" + std::to_string(port);
}

std::string with_escapes(std::string_view url) {
  while (!url.empty() && static_cast<unsigned char>(url.back()) <= ' ') url.remove_suffix(1);
  while (!url.empty() && static_cast<unsigned char>(url.front()) <= ' ') url.remove_prefix(1);
  const size_t scheme = url.find("://");
  if (scheme == url.npos || scheme > 5) return std::string(url);
  std::string out(url.substr(0, scheme));
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (out != "http" && out != "https") return std::string(url);
  const size_t target = std::min(url.find_first_of("/?#", scheme + 3), url.size());
  out += url.substr(scheme, target - scheme);
  for (const char c : url.substr(target)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::string_view(" \"<>^`{|}").find(c) == std::string_view::npos) {
      out += c;
    } else {
      constexpr const char* kHex = "0123456789ABCDEF";
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

std::optional<Url> parse_url(std::string_view text) {
  Url url;
  if (text.size() > kMaxUrl) return std::nullopt;
  if (text.starts_with("https://")) {
    url.tls = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return std::nullopt;
  }
  const size_t slash = std::min(text.find_first_of("/?#"), text.size());
  if (!read_authority(text.substr(0, slash), url)) return std::nullopt;
  const std::string_view target = text.substr(slash);
  if (!is_target(target)) return std::nullopt;
  const size_t mark = std::min(target.find('?'), target.size());
  url.path = mark == 0 ? "/" : std::string(target.substr(0, mark));
  url.query = target.substr(mark);
  if (climbs(url.path)) return std::nullopt;
  return url;
}

}  // namespace vlcache
