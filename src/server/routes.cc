#include "server/routes.h"

#include <algorithm>

#include "server/api.h"
#include "server/http/json_reply.h"
#include "server/page/page.h"

namespace vlcache {
namespace {

using enum Route::Access;
using Call = Route::Call;
using Reply = std::optional<HttpResponse>;

// A handler that sends its reply itself, at once or when it is there.
template <auto Handler>
Reply later(const Call& call) {
  (call.api.*Handler)(call.request, call.exchange);
  return std::nullopt;
}
template <auto Handler>
Reply at_once(const Call& call) {
  return (call.api.*Handler)();
}
template <auto Handler>
Reply of_body(const Call& call) {
  return (call.api.*Handler)(call.request, call.exchange);
}
Reply page(const Call& call) {
  Reply file = page_response(call.request);
  return file ? std::move(file) : no_route(call.request);
}

const char* name_of(Route::Access access) {
  if (access == kAnyone) return "all";
  if (access == kTotals) return "callers, or admins where there are several tenants";
  return access == kAdmins ? "admins" : "callers";
}

constexpr Route kRoutes[] = {
    {"GET", "/", kAnyone, false, "the page", page},
    {"GET", "/page/*", kAnyone, false, "its files", page},
    {"GET", "/favicon.ico", kAnyone, false, "404: the page names its icon", page},
    {"POST", "/v1/chat/completions", kCallers, false, "OpenAI's chat completions", later<&Api::chat>},
    {"POST", "/v1/completions", kCallers, false, "the older API: text or tokens, without chat template and images",
     later<&Api::complete>},
    {"POST", "/v1/messages", kCallers, false, "Anthropic's messages", later<&Api::messages>},
    {"POST", "/v1/messages/count_tokens", kCallers, false, "how many tokens such messages have",
     of_body<&Api::count_tokens>},
    {"POST", "/v1/responses", kCallers, false, "OpenAI's responses", later<&Api::responses>},
    {"POST", "/v1/files", kCallers, false, "uploads a file", of_body<&Api::files>},
    {"GET", "/v1/files", kCallers, false, "the caller's uploads", of_body<&Api::files>},
    {"GET", "/v1/files/*", kCallers, false, "one of them; `/v1/files/ID/content`: its bytes", of_body<&Api::files>},
    {"DELETE", "/v1/files/*", kCallers, false, "deletes it", of_body<&Api::files>},
    {"POST", "/tokenize", kCallers, false, "the tokens of a prompt or of messages", of_body<&Api::tokenize>},
    {"POST", "/detokenize", kCallers, false, "the text of tokens", of_body<&Api::detokenize>},
    {"GET", "/v1/models", kCallers, false, "the one model and its context", at_once<&Api::models>},
    {"GET", "/v1/models/*", kCallers, false, "the same by name", of_body<&Api::model_of>},
    {"GET", "/props", kCallers, false, "llama.cpp's: context, sampling defaults, slots, modalities, limits",
     at_once<&Api::props>},
    {"GET", "/v1/cache/stats", kTotals, false, "hits, misses and bytes of all caches", at_once<&Api::cache_stats>},
    {"GET", "/v1/cache/entries", kAdmins, false, "the images in memory", later<&Api::cache_entries>},
    {"POST", "/v1/cache/pin", kAdmins, false, "keeps an image in memory", later<&Api::cache_pin>},
    {"POST", "/v1/cache/drop", kAdmins, false, "removes an image from memory and all tiers", later<&Api::cache_drop>},
    {"POST", "/v1/cache/reset", kAdmins, false, "clears the caches in memory", later<&Api::cache_reset>},
    {"GET", "/v1/loads", kCallers, false, "what a load balancer weighs", at_once<&Api::loads>},
    {"GET", "/metrics", kTotals, true, "Prometheus metrics", at_once<&Api::metrics>},
    {"GET", "/version", kCallers, true, "the program's version", at_once<&Api::version>},
    {"GET", "/health", kAnyone, true, "200 once the server has warmed up, until it shuts down", at_once<&Api::health>},
    {"GET", "/health/ready", kAnyone, true, "the same", at_once<&Api::health>},
    {"GET", "/health/live", kAnyone, true, "200 as long as the process answers", at_once<&Api::live>},
};

constexpr std::string_view kVersion = "/v1";

// Without repeated slashes and one at the end, in lower case.
std::string plain_path(std::string_view path) {
  std::string plain;
  for (const char c : lower_case(path)) {
    if (c != '/' || !plain.ends_with('/')) plain += c;
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

// The route that a path without one ends in, as where a base URL has /v1 twice or a prefix; null: none.
const Route* route_meant_by(std::string_view path) {
  const std::string plain = plain_path(path);
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    std::string_view end = route.path;
    if (end.size() < 2 || end.ends_with('*')) continue;
    if (end.starts_with(kVersion)) end.remove_prefix(kVersion.size());
    const bool longer = found == nullptr || std::string_view(found->path).size() < std::string_view(route.path).size();
    if (plain.ends_with(end) && longer) found = &route;
  }
  return found;
}

}  // namespace

bool Route::has_path(std::string_view asked) const {
  const std::string_view own = path;
  return own.ends_with('*') ? asked.starts_with(own.substr(0, own.size() - 1)) : asked == own;
}

bool Route::has_method(std::string_view asked) const {
  return asked == method || (asked == "HEAD" && method[0] == 'G');
}

bool may_use(const Route& route, const Caller& caller) {
  if (route.access == kAdmins) return caller.admin;
  return route.access != kTotals || caller.sees_totals;
}

std::span<const Route> routes() { return kRoutes; }

const Route* find_route(std::string_view method, std::string_view path) {
  const auto fits = [&](const Route& route) { return route.has_method(method) && route.has_path(path); };
  const Route* found = std::ranges::find_if(kRoutes, fits);
  return found == std::end(kRoutes) ? nullptr : found;
}

std::string with_version(std::string_view path) {
  const auto is_known = [](std::string_view asked) {
    return std::ranges::any_of(kRoutes, [&](const Route& route) { return route.has_path(asked); });
  };
  std::string versioned = std::string(kVersion) + std::string(path);
  return !is_known(path) && is_known(versioned) ? versioned : "";
}

bool is_open(std::string_view path) {
  return path == "*" ||
         std::ranges::any_of(kRoutes, [&](const Route& r) { return r.access == kAnyone && r.has_path(path); });
}

HttpResponse no_route(const HttpRequest& request) {
  if (request.method == "OPTIONS" && request.path == "*") {  // the server as a whole (RFC 9110 9.3.7)
    std::string methods = "OPTIONS, HEAD";
    for (const Route& route : kRoutes) {
      if (methods.find(route.method) == methods.npos) methods += std::string(", ") + route.method;
    }
    return {.status = 204, .content_type = "text/plain", .headers = {{"allow", methods}}, .body = ""};
  }
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (request.path != route.path) continue;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method[0] == 'G' ? "GET, HEAD" : route.method);
  }
  if (allowed.empty()) {
    const Route* const meant = route_meant_by(request.path);
    const std::string advice =
        meant == nullptr ? "" : "; this server has " + std::string(meant->path) + " (is the client's base URL right?)";
    return refusal(404, "there is no " + request.path + advice, "invalid_request_error");
  }
  HttpResponse response = refusal(405, request.method + " is not for " + request.path, "invalid_request_error");
  response.headers.emplace_back("allow", allowed);
  return response;
}

std::string routes_markdown() {
  std::string text = "| route | for | what |\n|---|---|---|\n";
  for (const Route& route : kRoutes) {
    const char* access = name_of(route.access);
    text += "| `" + std::string(route.method) + " " + route.path + "` | " + access + " | " + route.meaning + " |\n";
  }
  return text;
}

}  // namespace vlcache
