// The table of routes: who may ask what, the replies where there is none, and the docs' list.
#include "server/routes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/json.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

TEST(Routes, PathsThatNeedNoKey) {
  for (const char* path : {"/", "/page/app.js", "/favicon.ico", "/health", "/health/live", "/health/ready", "*"}) {
    EXPECT_TRUE(is_open(path)) << path;
  }
  for (const char* path :
       {"/v1/models", "/metrics", "/tokenize", "/health/", "//health", "/v1/../health", "/no/such"}) {
    EXPECT_FALSE(is_open(path)) << path;
  }
}

TEST(Routes, EachIsFoundByItsMethods) {
  for (const Route& route : routes()) {
    EXPECT_EQ(find_route(route.method, route.path), &route) << route.path;
    EXPECT_EQ(find_route("HEAD", route.path), route.method == std::string("GET") ? &route : nullptr) << route.path;
    EXPECT_EQ(find_route("DELETE", route.path), nullptr) << route.path;
  }
  EXPECT_NE(find_route("GET", "/v1/models/a/b"), nullptr);
  EXPECT_EQ(find_route("GET", "/v1/model"), nullptr);
}

TEST(Routes, OtherMethodsAreToldWhatIsAllowed) {
  const auto allowed = [](const char* method, const char* path) {
    const HttpResponse response = no_route({.method = method, .path = path});
    const std::string status = std::to_string(response.status);
    return response.headers.empty() ? status : status + " " + response.headers[0].second;
  };
  EXPECT_EQ(allowed("GET", "/v1/chat/completions"), "405 POST");
  EXPECT_EQ(allowed("DELETE", "/v1/cache/entries"), "405 GET, HEAD");
  EXPECT_EQ(allowed("GET", "/v1/chat"), "404");
  EXPECT_EQ(allowed("OPTIONS", "*"), "204 OPTIONS, HEAD, GET, POST");
  EXPECT_EQ(allowed("GET", "*"), "404");
}

// A page of the docs has the list between two marks. VLCACHE_UPDATE_DOCS=1 rewrites it there.
TEST(Routes, DocsAreUpToDate) {
  const std::string begin = "<!-- routes -->\n", end = "<!-- /routes -->";
  int n_pages = 0;
  for (const fs::directory_entry& page : fs::recursive_directory_iterator(fs::path(VLCACHE_SOURCE_DIR) / "docs")) {
    if (page.path().extension() != ".md") continue;
    const std::string text = read_text_file(page.path());
    const size_t from = text.find(begin), to = text.find(end, std::min(from, text.size()));
    if (to == std::string::npos) continue;
    ++n_pages;
    const std::string expected = text.substr(0, from) + begin + routes_markdown() + text.substr(to);
    if (std::getenv("VLCACHE_UPDATE_DOCS") != nullptr) std::ofstream(page.path()) << expected;
    EXPECT_EQ(text, expected) << page.path() << ": VLCACHE_UPDATE_DOCS=1 writes it";
  }
  EXPECT_EQ(n_pages, 1);
}

}  // namespace
}  // namespace vlcache
