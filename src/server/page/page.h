// Serves the web page at /: the files that the program carries, and the list of policies that the page offers.
#pragma once

#include <optional>

#include "server/http/http_server.h"

namespace vlcache {

// The reply to a GET or HEAD of "/" or of a file below "/page/"; nullopt for every other request. The files hold
// nothing secret: the routes that the page calls may still require a key.
std::optional<HttpResponse> page_response(const HttpRequest& request);

}  // namespace vlcache
