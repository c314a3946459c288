// The page's files as a browser receives them.
#include "server/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "policy/registry.h"
#include "server/page/page_files.h"

namespace vlcache {
namespace {

using testing::HasSubstr;
using testing::Not;

HttpRequest get(const std::string& path, const std::string& etag = "") {
  HttpRequest request{.method = "GET", .path = path, .query = "", .headers = {}, .body = ""};
  if (!etag.empty()) request.headers.emplace_back("if-none-match", etag);
  return request;
}

std::string header(const HttpResponse& response, const std::string& name) {
  for (const auto& [n, value] : response.headers) {
    if (n == name) return value;
  }
  return "";
}

TEST(Page, IsComplete) {
  const auto page = page_response(get("/"));
  ASSERT_TRUE(page);
  EXPECT_EQ(page->content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page->body, testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page->body, testing::EndsWith("</html>\n"));
  EXPECT_THAT(header(*page, "content-security-policy"), HasSubstr("default-src 'self'"));
  // Every file that it links to exists.
  const std::regex link("(?:src|href)=\"(page/[^\"]+)\"");
  size_t n_links = 0;
  for (std::sregex_iterator it(page->body.begin(), page->body.end(), link), end; it != end; ++it, ++n_links) {
    EXPECT_TRUE(page_response(get("/" + (*it)[1].str()))) << (*it)[1];
  }
  EXPECT_GE(n_links, 3u);
}

TEST(Page, ModulesImportExistingFiles) {
  const std::regex import("from '\\./([^']+)'");
  size_t n_imports = 0;
  for (const PageFile& file : page_files()) {
    if (!file.name.ends_with(".js")) continue;
    const auto module = page_response(get("/page/" + std::string(file.name)));
    ASSERT_TRUE(module) << file.name;
    EXPECT_EQ(module->content_type, "text/javascript; charset=utf-8");
    EXPECT_EQ(module->body, file.bytes);
    for (std::sregex_iterator it(module->body.begin(), module->body.end(), import), end; it != end; ++it, ++n_imports) {
      EXPECT_TRUE(page_response(get("/page/" + (*it)[1].str()))) << file.name << " imports " << (*it)[1];
    }
  }
  EXPECT_GT(n_imports, 5u);
}

// The security policy forbids both; a model's text would be the first to use them. KaTeX, which can write markup, runs
// in a worker, which has no document.
TEST(Page, HasNoCodeInMarkupAndNoMarkupFromText) {
  for (const PageFile& file : page_files()) {
    if (file.name == "katex.js") continue;
    const std::string text(file.bytes);
    EXPECT_THAT(text, Not(HasSubstr("innerHTML"))) << file.name;
    EXPECT_THAT(text, Not(HasSubstr("insertAdjacentHTML"))) << file.name;
    EXPECT_FALSE(std::regex_search(text, std::regex("<script>|\\son[a-z]+=\"|\\sstyle=\""))) << file.name;
  }
}

TEST(Page, IsSmall) {
  size_t n_bytes = 0;
  for (const PageFile& file : page_files()) n_bytes += file.bytes.size();
  EXPECT_LT(n_bytes, 600'000u);
}

TEST(Page, IsSentOnceUntilItChanges) {
  const std::string etag = header(*page_response(get("/page/style.css")), "etag");
  EXPECT_EQ(etag.size(), 34u);
  const auto again = page_response(get("/page/style.css", etag));
  EXPECT_EQ(again->status, 304);
  EXPECT_EQ(again->body, "");
  EXPECT_EQ(page_response(get("/page/style.css", "\"other\""))->status, 200);
  EXPECT_NE(header(*page_response(get("/")), "etag"), etag);
}

TEST(Page, OtherPathsAreNotServed) {
  EXPECT_FALSE(page_response(get("/page/")));
  EXPECT_FALSE(page_response(get("/page/index.html")));
  EXPECT_FALSE(page_response(get("/page/../v1/models")));
  EXPECT_FALSE(page_response(get("/v1/models")));
  HttpRequest post = get("/");
  post.method = "POST";
  EXPECT_FALSE(page_response(post));
  post.method = "HEAD";
  EXPECT_TRUE(page_response(post));
}

TEST(Page, OffersOnlyExistingPolicies) {
  const auto list = nlohmann::json::parse(page_response(get("/page/policies.json"))->body);
  EXPECT_GT(list.size(), 10u);
  EXPECT_EQ(list[0]["name"], "auto");
  for (const auto& entry : list) {
    const auto name = entry["name"].get<std::string>();
    if (name == "auto") continue;
    EXPECT_THAT(policy_infos(), testing::Contains(testing::Field(&PolicyInfo::name, name)));
    EXPECT_FALSE(entry["meaning"].get<std::string>().empty());
  }
}

}  // namespace
}  // namespace vlcache
