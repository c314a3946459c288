// The routes of the server: one table, from which come the handlers, 404, 405, access, and the list in the docs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/operations/exchange.h"

namespace vlcache {

class Api;

struct Route {
  enum class Access : uint8_t {
    kAnyone,   // needs no key
    kCallers,  // needs a key, if the server has keys
    kTotals,   // has counts of all tenants: for admins, and for callers where there is one tenant
    kAdmins,
  };
  struct Call {
    Api& api;
    const HttpRequest& request;
    const ExchangePtr& exchange;  // null on the port for operators
  };

  const char* method;  // GET: HEAD, too
  const char* path;    // ends in *: all that begin so
  Access access;
  bool operation;  // answered at once, and on the port for operators
  const char* meaning;
  // nullopt: the reply is sent when it is there.
  std::optional<HttpResponse> (*answer)(const Call& call);

  bool has_path(std::string_view asked) const;
  bool has_method(std::string_view asked) const;
};

// Whether a caller with a key that is accepted may use the route.
bool may_use(const Route& route, const Caller& caller);

std::span<const Route> routes();
// The route of a request; null: none.
const Route* find_route(std::string_view method, std::string_view path);
// The path with /v1 before it, where that has a route and the path has none: clients whose base URL lacks /v1 are
// answered as if it had it. "": there is no such route.
std::string with_version(std::string_view path);
// Whether what a path has is for anyone.
bool is_open(std::string_view path);
// The reply where there is no route: 405 if the path has other methods, else 404, which names the route that the path
// ends in.
HttpResponse no_route(const HttpRequest& request);

// The list as it is in the docs.
std::string routes_markdown();

}  // namespace vlcache
