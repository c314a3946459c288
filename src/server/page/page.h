// The web page at / and what belongs to it: files that the program carries, and the policies that may be chosen there.
#pragma once

#include <optional>

#include "server/http/http_server.h"

namespace vlcache {

// The answer to a GET or HEAD of "/" or something below "/page/" that is there; none for all others. Holds nothing that
// is secret: who reads it may still be asked for a key by the routes that the page calls.
std::optional<HttpResponse> page_response(const HttpRequest& request);

}  // namespace vlcache
