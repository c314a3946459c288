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
    EXPECT_EQ(find_route("HEAD", route.path), find_route("GET", route.path)) << route.path;
    const bool has_files = std::string_view(route.path).starts_with("/v1/files/");
    EXPECT_EQ(find_route("DELETE", route.path) != nullptr, has_files) << route.path;
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
  EXPECT_EQ(allowed("PUT", "/v1/files"), "405 POST, GET, HEAD");
  EXPECT_EQ(allowed("GET", "/v1/chat"), "404");
  EXPECT_EQ(allowed("OPTIONS", "*"), "204 OPTIONS, HEAD, GET, POST, DELETE");
  EXPECT_EQ(allowed("GET", "*"), "404");
}

TEST(Routes, PathsWithoutVersionAreAnsweredAsThoseWithIt) {
  for (const char* path : {"/chat/completions", "/completions", "/responses", "/messages", "/messages/count_tokens",
                           "/models", "/models/a/b", "/loads"}) {
    EXPECT_EQ(with_version(path), "/v1" + std::string(path));
    EXPECT_FALSE(is_open(with_version(path)));
  }
  for (const char* path :
       {"/", "/health", "/v1/models", "/tokenize", "/page/app.js", "/v1/v1/models", "/no", "chat/completions"}) {
    EXPECT_EQ(with_version(path), "") << path;
  }
}

TEST(Routes, PathsThatEndInARouteNameIt) {
  const auto body = [](const char* path) { return no_route({.method = "POST", .path = path}).body; };
  for (const char* path : {"/v1/v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/",
                           "/api/chat/completions", "/openai/deployments/m/chat/completions", "/V1/Chat/Completions"}) {
    EXPECT_NE(body(path).find("this server has /v1/chat/completions"), std::string::npos) << path;
  }
  EXPECT_NE(body("/v1/health").find("this server has /health "), std::string::npos);
  EXPECT_EQ(body("/v1/embeddings").find("this server has"), std::string::npos);
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
