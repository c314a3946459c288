// Access: whether a request may be answered at all, before anybody looks at what it asks. Pages of other sites may not
// use a visitor's browser to ask (DNS rebinding shows in Host, requests across sites in Origin), and where there are
// API keys, one is needed.
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

namespace vlcache {

struct AccessOptions {
  // Names that requests may call the server by, besides localhost and addresses, which no other site's name can turn
  // into; "*": any.
  std::vector<std::string> hosts;
  std::vector<std::string> origins;  // of other sites whose pages may ask, "https://chat.example"; "*": of all
  std::filesystem::path keys_file;   // empty: nobody needs a key
};

class Access {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  struct Verdict {
    std::optional<HttpResponse> answer;  // a refusal, or the answer to a preflight; none: the request may go on
    Headers headers;                     // for whatever reply the request gets
    Caller caller;
  };

  // Throws Error(kInput) for origins and key files that cannot be.
  explicit Access(const AccessOptions& options);

  // Any thread.
  Verdict check(const HttpRequest& request) const;
  // Reads the keys anew. Throws Error, and leaves them as they were.
  void reload();

 private:
  bool allows_host(std::string_view host) const;
  bool allows_origin(std::string_view origin, std::string_view host) const;

  AccessOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_;  // those that requests in other threads still look at stay; null: none
};

// The name or address of a Host header or an origin's authority, in lower case, without port and brackets; "" where it
// is none.
std::string host_name(std::string_view authority);
// Whether a name is an address: 127.0.0.1, ::1.
bool is_address(std::string_view name);

}  // namespace vlcache
