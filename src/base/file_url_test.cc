// Spellings of files' URLs, and texts that name no file of this machine.
#include "base/file_url.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

TEST(FileUrl, SpellingsOfOnePath) {
  for (const char* url : {"file:///a%20b.png", "file:///a b.png", "file://localhost/a%20b.png",
                          "FILE://LOCALHOST/a b.png", "file:/a%20b.png", "File:///a%20%62.png"}) {
    EXPECT_EQ(path_of_file_url(url), "/a b.png") << url;
  }
  EXPECT_EQ(path_of_file_url("file:///\xC3\xBC%C3%BC%25"), "/\xC3\xBC\xC3\xBC%");
  EXPECT_EQ(path_of_file_url(file_url_of("/a%20 b")), "/a%20 b");
}

TEST(FileUrl, OthersNameNoPath) {
  for (const char* url :
       {"", "file:", "file://", "file://host/a", "file://localhost", "file://localhost.evil/a", "file:a", "file://./a",
        "/a", "http://localhost/a", "file:///%", "file:///a%00b", "file:///a%2"}) {
    EXPECT_EQ(path_of_file_url(url), std::nullopt) << url;
  }
  EXPECT_EQ(path_of_file_url(std::string_view("file:///a\0b", 11)), std::nullopt);
}

}  // namespace
}  // namespace vlcache
