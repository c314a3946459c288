// Fetches a file from a web server that the operator has named: no redirects, within limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "server/http/url.h"

namespace vlcache {

struct HttpGetLimits {
  uint64_t max_bytes = uint64_t{64} << 20;
  std::chrono::milliseconds timeout{10'000};  // of the whole fetch
};

// Returns the body of a 200. The name must resolve to public addresses (localhost: to this machine's), and the
// connection goes to an address that was checked. Certificates are checked against the system's. Throws Error(kInput)
// that begins with `where`, because the URL comes from the request; Error(kCancelled) soon after `cancelled`, which is
// asked about 20 times a second, says so.
std::string http_get(const Url& url, const std::string& where, const HttpGetLimits& limits = {},
                     const std::function<bool()>& cancelled = nullptr);

// Whether an address is on the public internet: not in a private network, on this machine or link, or in a form that
// can embed another address. False for text that is not an address.
bool is_public_address(std::string_view address);

}  // namespace vlcache
