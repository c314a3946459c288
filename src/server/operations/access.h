// Access decides whether a request may be answered at all, before its content is looked at. Pages of other sites must
// not use a visitor's browser to send requests (DNS rebinding shows in Host, cross-site requests in Origin), and if
// there are API keys, one is required.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_server.h"
#include "server/operations/api_keys.h"
#include "server/operations/origins.h"

namespace vlcache {

struct AccessOptions {
  // Names that requests may call the server by, besides localhost and addresses, which no name of another site can
  // become; "*": any.
  std::vector<std::string> hosts;
  // Names that no public site has, too: a name without a dot (a container's, this machine's), *.internal, *.local,
  // those of a cluster. For servers that other machines are to reach.
  bool private_hosts = false;
  std::vector<std::string> origins;  // other sites whose pages may send requests, as AllowedOrigins reads them
  std::filesystem::path keys_file;   // empty: no key is needed
};

class Access {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  struct Verdict {
    std::optional<HttpResponse> answer;  // a refusal, or the answer to a preflight; none: the request is allowed
    Headers headers;                     // for every reply to the request
    Caller caller;
  };

  // Throws Error(kInput) for invalid origins and key files.
  explicit Access(const AccessOptions& options);

  // Any thread. open: no key is needed.
  Verdict check(const HttpRequest& request, bool open = false) const;
  // Reloads the keys. Throws Error and keeps the old ones.
  void reload();

 private:
  bool allows_host(std::string_view host) const;
  // Whether the origin is this server's own, as the Host header calls it.
  static bool is_own_origin(std::string_view origin, std::string_view host);

  AccessOptions options_;
  AllowedOrigins origins_;
  mutable std::mutex mutex_;
  // Shared, because checks in other threads may still use keys that were replaced; null: none.
  std::shared_ptr<const ApiKeys> keys_;
};

// The name or address in a Host header or an origin's authority, in lower case, without port and brackets; "" if there
// is none.
std::string host_name(std::string_view authority);
// Whether a name is an address: 127.0.0.1, ::1.
bool is_address(std::string_view name);

}  // namespace vlcache
