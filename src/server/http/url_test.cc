// URLs that are accepted, and texts that look like them and are rejected.
#include "server/http/url.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

TEST(Url, Parts) {
  const std::optional<Url> url = parse_url("https://Images.Example:8443/a/b%20c.png?x=%2e%2e/&y");
  ASSERT_TRUE(url);
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "images.example");
  EXPECT_FALSE(url->is_address);
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->path, "/a/b%20c.png");
  EXPECT_EQ(url->query, "?x=%2e%2e/&y");
  EXPECT_EQ(url->authority(), "images.example:8443");
  EXPECT_EQ(parse_url("http://h")->path, "/");
  EXPECT_EQ(parse_url("http://h?q")->query, "?q");
  EXPECT_EQ(parse_url("http://h:80/")->authority(), "h");
  EXPECT_EQ(parse_url("https://h/")->port, 443);
}

TEST(Url, Addresses) {
  EXPECT_TRUE(parse_url("http://127.0.0.1/")->is_address);
  EXPECT_EQ(parse_url("http://[0:0::1]:81/")->authority(), "[::1]:81");
  // Numbers that some libraries take for addresses are names here, and match no prefix.
  for (const char* text : {"http://2130706433/", "http://0x7f000001/", "http://127.1/", "http://0177.0.0.1/"}) {
    const std::optional<Url> url = parse_url(text);
    EXPECT_TRUE(!url || url->host != "127.0.0.1") << text;
  }
}

TEST(Url, InvalidUrlsAreRejected) {
  for (const char* text : {"",
                           "h/x",
                           "//h/x",
                           "ftp://h/",
                           "file:///etc/passwd",
                           "HTTP://h/",
                           "http:/h",
                           "http://",
                           "http:///x",
                           "http://:80/",
                           "http://h:/",
                           "http://h:0/",
                           "http://h:65536/",
                           "http://h:8x/",
                           "http://u@h/",
                           "http://u:p@h/",
                           "http://h/#f",
                           "http://h/a b",
                           "http://h/\n",
                           "http://h/\x7f",
                           "http://h/\xc3\xa4",
                           "http://h\\@evil/",
                           "http://h/..",
                           "http://h/a/../b",
                           "http://h/%2e%2E/b",
                           "http://h/.%2e",
                           "http://h/a%2fb",
                           "http://h/%5c..%5c",
                           "http://h/%",
                           "http://h/%4",
                           "http://h/%00",
                           "http://h/%zz",
                           "http://.h/",
                           "http://h./",
                           "http://a..b/",
                           "http://[::1",
                           "http://[h]/",
                           "http://::1/",
                           "http://[fe80::1%25eth0]/",
                           "http://[127.0.0.1]/",
                           "http://h%2eexample/",
                           "http://\xe2\x93\x94/"}) {
    EXPECT_FALSE(parse_url(text)) << text;
  }
  EXPECT_FALSE(parse_url("http://h/" + std::string(9000, 'a')));
}

}  // namespace
}  // namespace vlcache
