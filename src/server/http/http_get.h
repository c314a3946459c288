// Fetching a file from a web server that the operator has named: no redirects, within limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/url.h"

namespace vlcache {

struct HttpGetLimits {
  uint64_t max_bytes = uint64_t{64} << 20;
  std::chrono::milliseconds timeout{10'000};  // of all of it
};

// The body of a 200. A name may only stand for public addresses (localhost: for this machine's), and what was looked at
// is what is connected to. Certificates are checked against the system's. Throws Error(kInput) that begins with
// `where`: whoever asked has named what cannot be had.
std::string http_get(const Url& url, const std::string& where, const HttpGetLimits& limits = {});

// Whether an address is one of the internet: not of a private network, this machine, a link, or a form in which other
// addresses hide. False for what is none.
bool is_public_address(std::string_view address);

}  // namespace vlcache
