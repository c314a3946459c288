#include "server/page/page.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "policy/registry.h"
#include "server/page/page_files.h"

namespace vlcache {
namespace {

// The page requests no other host, runs no code but that of these files, and cannot be framed by another page.
constexpr const char* kSecurityPolicy =
    "default-src 'self'; img-src 'self' data: blob:; media-src blob:; object-src 'none'; base-uri 'none'; form-action "
    "'none'; "
    "frame-ancestors 'none'";

struct Resource {
  std::string content_type, body, etag;
};

std::string content_type_of(std::string_view name) {
  constexpr std::pair<std::string_view, const char*> kTypes[] = {{".html", "text/html; charset=utf-8"},
                                                                 {".css", "text/css; charset=utf-8"},
                                                                 {".js", "text/javascript; charset=utf-8"},
                                                                 {".png", "image/png"},
                                                                 {".svg", "image/svg+xml"},
                                                                 {".txt", "text/plain; charset=utf-8"}};
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  return "application/octet-stream";
}

std::string etag_of(std::string_view body) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(body)));
  return '"' + hex(hash.finish()).substr(0, 32) + '"';
}

// The policies that the page offers, and the scorers that may stand alone.
std::string policies_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  list.push_back(
      {{"name", "auto"},
       {"meaning", "recommended: as draft, after an answer's first 64 tokens; shorter answers are not compressed"}});
  for (const PolicyInfo& info : policy_infos()) {
    if (info.kind != PolicyInfo::Kind::kPolicy && info.kind != PolicyInfo::Kind::kScorer) continue;
    list.push_back({{"name", info.name}, {"meaning", info.meaning}});
  }
  return list.dump();
}

std::map<std::string, Resource, std::less<>> make_resources() {
  std::map<std::string, Resource, std::less<>> resources;
  const auto add = [&](const std::string& path, const std::string& type, std::string body) {
    Resource& resource = resources[path];
    resource = {.content_type = type, .body = std::move(body), .etag = ""};
    resource.etag = etag_of(resource.body);
  };
  for (const PageFile& file : page_files()) {
    const std::string path = file.name == "index.html" ? "/" : "/page/" + std::string(file.name);
    add(path, content_type_of(file.name), std::string(file.bytes));
  }
  add("/page/policies.json", "application/json", policies_json());
  return resources;
}

}  // namespace

std::optional<HttpResponse> page_response(const HttpRequest& request) {
  static const std::map<std::string, Resource, std::less<>> resources = make_resources();
  if (request.method != "GET" && request.method != "HEAD") return std::nullopt;
  const auto found = resources.find(request.path);
  if (found == resources.end()) return std::nullopt;
  const Resource& resource = found->second;
  // Revalidated on every load and sent only if changed: a new program's page appears at once.
  HttpResponse response{.status = 200,
                        .content_type = resource.content_type,
                        .headers = {{"etag", resource.etag},
                                    {"cache-control", "no-cache"},
                                    {"content-security-policy", kSecurityPolicy},
                                    {"x-content-type-options", "nosniff"},
                                    {"referrer-policy", "no-referrer"}},
                        .body = ""};
  if (request.header("if-none-match") == resource.etag) {
    response.status = 304;
  } else {
    response.body = resource.body;
  }
  return response;
}

}  // namespace vlcache
