// Images from files and other hosts: what is allowed, and every way around it.
#include "server/image_source.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/http/http_server.h"

namespace vlcache {
namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The error's message; "": no error.
std::string problem(const ImageSource& source, const std::string& url) {
  try {
    source.read(url, "here");
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInput);
    EXPECT_TRUE(std::string(e.what()).starts_with("here: ")) << e.what();
    return e.what();
  }
}

constexpr std::string_view kNotAllowed = "--image-url-prefix", kNoFile = "--image-path-prefix";

bool says(const std::string& what, std::string_view text) { return what.find(text) != what.npos; }

class Files : public testing::Test {
 protected:
  Files() : dir_(std::filesystem::temp_directory_path() / ("vlcache-images-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(dir_ / "open/sub");
    std::filesystem::create_directories(dir_ / "open-not");
    for (const char* name : {"open/a b.png", "open/sub/c", "open-not/d", "secret"}) std::ofstream(dir_ / name) << name;
    std::filesystem::create_symlink(dir_ / "secret", dir_ / "open/link");
    std::filesystem::create_symlink(dir_ / "open/sub/c", dir_ / "open/inner");
    std::filesystem::create_symlink(dir_, dir_ / "open/up");
    mkfifo((dir_ / "open/pipe").c_str(), 0600);
  }
  ~Files() override { std::filesystem::remove_all(dir_); }
  std::string url(const std::string& name) const { return "file://" + dir_.string() + "/" + name; }

  std::filesystem::path dir_;
};

TEST_F(Files, AreReadBelowTheFolderOnly) {
  const ImageSource source({.path_prefixes = {dir_ / "open/../open"}});
  EXPECT_EQ(text_of(source.read(url("open/a%20b.png"), "here")), "open/a b.png");
  EXPECT_EQ(text_of(source.read(url("open/sub/c"), "here")), "open/sub/c");
  EXPECT_EQ(text_of(source.read(url("open/inner"), "here")), "open/sub/c");
  const std::string path = dir_.string();
  for (const std::string& same :
       {"file://localhost" + path + "/open/a%20b.png", "FILE://" + path + "/open/a b.png",
        "file:" + path + "/open/a%20b.png", "File://LocalHost" + path + "/open/sub/../a b.png"}) {
    EXPECT_EQ(text_of(source.read(same, "here")), "open/a b.png") << same;
    const std::string up = same.substr(0, same.find("/open")) + "/open/%2e%2e/secret";
    EXPECT_TRUE(says(problem(source, up), kNoFile)) << up;
  }
  for (const char* name :
       {"secret", "open/../secret", "open/%2e%2e/secret", "open/link", "open/up/secret", "open-not/d", "open", "open/",
        "open/sub", "open/pipe", "open/none", "open/a%00b", "open/%"}) {
    EXPECT_TRUE(says(problem(source, url(name)), kNoFile)) << name;
  }
  for (const char* other : {"file:///etc/passwd", "file:///dev/zero", "file:///proc/self/environ", "file://"}) {
    EXPECT_NE(problem(source, other), "") << other;
  }
  for (const char* host : {"host", "localhost.evil", "127.0.0.1", "localhost:80", "a@localhost"}) {
    EXPECT_TRUE(says(problem(source, "file://" + (host + path) + "/open/sub/c"), kNotAllowed)) << host;
  }
  EXPECT_TRUE(says(problem(source, dir_.string() + "/open/sub/c"), kNotAllowed));
  const ImageSource small({.path_prefixes = {dir_ / "open"}, .limits = {.max_bytes = 9}});
  EXPECT_TRUE(says(problem(small, url("open/sub/c")), "larger than 9 bytes"));
}

TEST_F(Files, WithoutPrefixesOnlyDataUrisAreTaken) {
  const ImageSource source({});
  EXPECT_EQ(text_of(source.read("data:image/png;base64,QUI=", "here")), "AB");
  for (const std::string& other :
       {url("open/sub/c"), std::string("http://127.0.0.1/"), std::string("data:text/html;base64,QUI=")}) {
    EXPECT_TRUE(says(problem(source, other), "data URI")) << other;
  }
}

TEST_F(Files, InvalidPrefixesAreErrors) {
  for (const char* url :
       {"", "images.example/", "https://images.example", "https://images.example/a", "https://h/?q=/", "file:///x/"}) {
    const auto make = [&] { return ImageSource({.url_prefixes = {url}}); };
    if (std::string(url) == "https://images.example") {
      EXPECT_NO_THROW(make());  // all of a host
    } else {
      EXPECT_THROW(make(), Error) << url;
    }
  }
  EXPECT_THROW(ImageSource({.path_prefixes = {dir_ / "none"}}), Error);
  EXPECT_THROW(ImageSource({.path_prefixes = {dir_ / "secret"}}), Error);
}

class Urls : public testing::Test {
 protected:
  Urls()
      : server_({}, [this](const HttpRequest& r, const HttpReplyPtr& reply) {
          ++n_asked_;
          if (r.path == "/pub/late") {
            const std::lock_guard lock(mutex_);
            return late_.push_back(reply);
          }
          if (r.path == "/pub/away") return reply->send({.status = 302, .headers = {{"location", "/pub/a.png"}}});
          if (r.path == "/pub/none") return reply->send({.status = 404});
          reply->send({.content_type = "image/png",
                       .body = r.path == "/pub/large" ? std::string(1000, 'x') : r.path + r.query});
        }) {}
  std::string at(const std::string& host) const { return "http://" + host + ":" + std::to_string(server_.port()); }
  ImageSource source(const std::string& host = "127.0.0.1") const {
    return ImageSource({.url_prefixes = {at(host) + "/pub/"},
                        .limits = {.max_bytes = 500, .timeout = std::chrono::milliseconds(300)}});
  }

  std::atomic<int> n_asked_ = 0;
  std::mutex mutex_;
  std::vector<HttpReplyPtr> late_;
  HttpServer server_;
};

TEST_F(Urls, AreFetchedBelowThePrefixOnly) {
  const ImageSource s = source();
  EXPECT_EQ(text_of(s.read(at("127.0.0.1") + "/pub/a.png?x=1", "here")), "/pub/a.pngx=1");
  EXPECT_EQ(text_of(s.read(at("127.0.0.1") + "/pub/Seite \xC3\xBC {1}.png?a=\"b\"", "here")),
            "/pub/Seite%20%C3%BC%20%7B1%7D.pnga=%22b%22");
  EXPECT_EQ(text_of(s.read("HTTP" + at("127.0.0.1").substr(4) + "/pub/a%20b", "here")), "/pub/a%20b");
  const int n_before = n_asked_;
  const std::string port = ":" + std::to_string(server_.port());
  for (const std::string& url : std::vector<std::string>{at("127.0.0.1") + "/other/a.png",
                                                         at("127.0.0.1") + "/pub/../other",
                                                         at("127.0.0.1") + "/pub/%2e%2e/other",
                                                         at("127.0.0.1") + "/pub/ /../../other",
                                                         at("127.0.0.1") + "/pub/\\..\\other",
                                                         at("127.0.0.1") + "/pub/a\nb",
                                                         at("127.0.0.1") + " /pub/a.png",
                                                         at("127.0.0.1\xC3\xBC") + "/pub/a.png",
                                                         at("127.0.0.1") + "/pub",
                                                         at("localhost") + "/pub/a.png",
                                                         at("2130706433") + "/pub/a.png",
                                                         at("0x7f.1") + "/pub/a.png",
                                                         at("127.1") + "/pub/a.png",
                                                         at("[::1]") + "/pub/a.png",
                                                         at("[::ffff:127.0.0.1]") + "/pub/a.png",
                                                         at("127.0.0.2") + "/pub/a.png",
                                                         "http://127.0.0.1/pub/a.png",
                                                         "https://127.0.0.1" + port + "/pub/a.png",
                                                         "http://127.0.0.1@evil.example" + port + "/pub/a.png",
                                                         "http://evil.example#127.0.0.1" + port + "/pub/",
                                                         std::string("file:///pub/a.png"),
                                                         std::string("gopher://127.0.0.1/pub/")}) {
    EXPECT_NE(problem(s, url), "") << url;
  }
  EXPECT_EQ(n_asked_, n_before);
}

TEST_F(Urls, FailuresReportTheReason) {
  const ImageSource s = source();
  const std::string pub = at("127.0.0.1") + "/pub/";
  EXPECT_TRUE(says(problem(s, pub + "away"), "answers 302; redirects are not followed"));
  EXPECT_TRUE(says(problem(s, pub + "none"), "answers 404"));
  EXPECT_TRUE(says(problem(s, pub + "large"), "larger than 500 bytes"));
  EXPECT_TRUE(says(problem(s, pub + "late"), "not there within 300 ms"));
  const std::lock_guard lock(mutex_);
  late_.clear();
}

// A name must not resolve to a private address, except localhost.
TEST_F(Urls, NamesOfPrivateAddressesAreRejected) {
  EXPECT_EQ(text_of(source("localhost").read(at("localhost") + "/pub/a", "here")), "/pub/a");
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const int n_before = n_asked_;
  std::string host = name;
  for (char& c : host) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string what = problem(source(host), at(host) + "/pub/a");  // a private address of this machine, or none
  EXPECT_TRUE(says(what, "no public address") || says(what, "cannot be found")) << what;
  EXPECT_EQ(n_asked_, n_before);
}

TEST(PublicAddress, IsOneOfTheInternet) {
  for (const char* address : {"8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.128.0.1", "192.167.1.1",
                              "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"}) {
    EXPECT_TRUE(is_public_address(address)) << address;
  }
  for (const char* address : {"",
                              "x",
                              "0.0.0.0",
                              "10.1.2.3",
                              "127.0.0.1",
                              "127.255.255.255",
                              "169.254.169.254",
                              "172.16.0.1",
                              "172.31.255.255",
                              "192.168.0.1",
                              "100.64.0.1",
                              "198.18.0.1",
                              "192.0.2.1",
                              "203.0.113.9",
                              "224.0.0.1",
                              "255.255.255.255",
                              "::",
                              "::1",
                              "::ffff:8.8.8.8",
                              "::ffff:127.0.0.1",
                              "fe80::1",
                              "fc00::1",
                              "fd12::1",
                              "ff02::1",
                              "64:ff9b::7f00:1",
                              "2002:7f00:1::",
                              "2001:db8::1",
                              "2001::1"}) {
    EXPECT_FALSE(is_public_address(address)) << address;
  }
}

}  // namespace
}  // namespace vlcache
