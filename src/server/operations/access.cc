// The order of the checks is Host, Origin, key.
#include "server/operations/access.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/http/json_reply.h"

namespace vlcache {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::ranges::find(list, item) != list.end() || std::ranges::find(list, "*") != list.end();
}

// To browsers, "https://h:443" is "https://h". Returns "" unless the text is the origin of a web page.
std::string_view authority_of(std::string_view origin) {
  const bool tls = origin.starts_with("https://");
  if (!tls && !origin.starts_with("http://")) return {};
  std::string_view authority = origin.substr(origin.find("://") + 3);
  if (host_name(authority).empty()) return {};
  const std::string_view usual = tls ? ":443" : ":80";
  if (authority.ends_with(usual)) authority.remove_suffix(usual.size());
  return authority;
}

std::string_view key_of(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.header("authorization");
  if (lower_case(authorization.substr(0, kBearer.size())) == kBearer) return authorization.substr(kBearer.size());
  const std::string_view key = request.header("x-api-key");
  return key.empty() ? request.header("api-key") : key;  // Azure's clients
}

// Names that the public DNS does not give to a site (RFC 6762, RFC 8375, ICANN's .internal), and this machine's own.
bool is_private_name(std::string_view name) {
  if (name.empty()) return false;
  if (name.find('.') == name.npos) return true;
  for (const char* end : {".internal", ".local", ".svc", ".home.arpa", ".localdomain"}) {
    if (name.ends_with(end)) return true;
  }
  char own[256] = "";
  return gethostname(own, sizeof own - 1) == 0 && name == lower_case(own);
}

bool changes_nothing(std::string_view method) { return method == "GET" || method == "HEAD" || method == "OPTIONS"; }

// All headers are allowed: clients send their own besides ours.
HttpResponse preflight(const HttpRequest& request) {
  const std::string_view wanted = request.header("access-control-request-headers");
  return {.status = 204,
          .content_type = "text/plain",
          .headers = {{"access-control-allow-methods", "GET, POST, DELETE"},
                      {"access-control-allow-headers",
                       wanted.empty() ? "authorization, content-type" : std::string(wanted)},
                      {"access-control-max-age", "600"}},
          .body = ""};
}

}  // namespace

std::string host_name(std::string_view authority) {
  std::string_view name = authority, port;
  if (name.starts_with('[')) {
    const size_t end = name.find(']');
    if (end == name.npos) return "";
    port = name.substr(end + 1);
    name = name.substr(1, end - 1);
    if (name.find(':') == name.npos) return "";
  } else if (const size_t colon = name.find(':'); colon != name.npos) {
    port = name.substr(colon);
    name = name.substr(0, colon);
  }
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!port.empty() && (port[0] != ':' || port.size() > 6 || !std::ranges::all_of(port.substr(1), digit))) return "";
  if (name.ends_with('.')) name.remove_suffix(1);
  std::string host = lower_case(name);
  const auto plain = [&](char c) { return digit(c) || (c >= 'a' && c <= 'z') || c == '-' || c == '.' || c == '_'; };
  const bool good = authority.starts_with('[') ? is_address(host) : std::ranges::all_of(host, plain);
  return good ? host : "";
}

bool is_address(std::string_view name) {
  const auto part = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '.' || c == ':'; };
  if (!std::ranges::all_of(name, part)) return false;
  unsigned char bytes[16];
  const std::string text(name);
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 || inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

Access::Access(const AccessOptions& options) : options_(options), origins_(options.origins) {
  for (std::string& host : options_.hosts) {
    const std::string name = host == "*" ? host : host_name(host);
    if (name.empty()) {
      throw Error(ErrorCode::kInput,
                  "--allowed-host: expected a name such as chat.example, or *, found '" + host + "'");
    }
    host = name;
  }
  reload();
}

void Access::reload() {
  if (options_.keys_file.empty()) return;
  auto keys = std::make_shared<const ApiKeys>(ApiKeys::load(options_.keys_file));
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

bool Access::allows_host(std::string_view host) const {
  const std::string name = host_name(host);
  return name == "localhost" || name.ends_with(".localhost") || is_address(name) || contains(options_.hosts, name) ||
         (options_.private_hosts && is_private_name(name));
}

bool Access::is_own_origin(std::string_view origin, std::string_view host) {
  const std::string_view from = authority_of(origin);
  if (host.ends_with(":80") || host.ends_with(":443")) host = host.substr(0, host.rfind(':'));
  return !from.empty() && lower_case(from) == lower_case(host);
}

Access::Verdict Access::check(const HttpRequest& request, bool open) const {
  Verdict verdict;
  const std::string_view host = request.header("host"), origin = request.header("origin");
  if (!host.empty() && !allows_host(host)) {  // without one: not a browser
    verdict.answer = refusal(403,
                             "the Host header names '" + std::string(host.substr(0, 100)) +
                                 "', which this server is not known by (--allowed-host)",
                             "invalid_request_error", "host_not_allowed");
    return verdict;
  }
  if (!origin.empty() && origins_.contains(origin)) {
    verdict.headers = {{"access-control-allow-origin", std::string(origin)},
                       {"access-control-expose-headers", "x-request-id, retry-after"},
                       {"vary", "origin"}};
    if (request.method == "OPTIONS") {
      verdict.answer = preflight(request);
      return verdict;
    }
  } else if (!origin.empty() && !changes_nothing(request.method) && !is_own_origin(origin, host)) {
    verdict.answer =
        refusal(403, "pages of '" + std::string(origin.substr(0, 100)) + "' may not ask this server (--cors)",
                "invalid_request_error", "origin_not_allowed");
    return verdict;
  }
  std::shared_ptr<const ApiKeys> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  if (keys == nullptr || open) return verdict;
  const std::optional<Caller> caller = keys->find(key_of(request));
  if (caller) {
    verdict.caller = *caller;
  } else {
    verdict.answer = refusal(401, "expected an API key of this server in the header Authorization: Bearer KEY",
                             "invalid_request_error", "invalid_api_key");
    verdict.answer->headers.emplace_back("www-authenticate", "Bearer");
  }
  return verdict;
}

}  // namespace vlcache
