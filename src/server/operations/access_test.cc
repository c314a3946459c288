// Hosts, origins and keys that are allowed, and those that are refused.
#include "server/operations/access.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace vlcache {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

// The status of the refusal; 0: the request is allowed.
int status(const Access& access, const Headers& headers, const std::string& method = "POST",
           const std::string& path = "/v1/chat/completions") {
  const Access::Verdict verdict = access.check({.method = method, .path = path, .headers = headers});
  return verdict.answer ? verdict.answer->status : 0;
}

std::string header(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(Access, UnknownHostNamesAreRejected) {
  const Access access({.hosts = {"Chat.Example"}});
  for (const char* host : {"", "localhost", "localhost:8080", "LOCALHOST:1", "a.localhost", "127.0.0.1:8080",
                           "[::1]:8080", "[::1]", "192.168.1.7", "chat.example:443", "chat.example."}) {
    EXPECT_EQ(status(access, {{"host", host}}, "GET", "/v1/models"), 0) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "chat.example.evil", "localhost.evil",
        "notlocalhost", "chat.example:x", "[evil.example]", "a b", "chat.example@evil.example", "[::1", "1.2.3.4.5",
        "0x7f.1", "2130706433", ":80", "localhost/"}) {
    EXPECT_EQ(status(access, {{"host", host}}, "GET", "/v1/models"), 403) << host;
  }
  EXPECT_EQ(status(Access({.hosts = {"*"}}), {{"host", "whatever.example"}}), 0);
}

TEST(Access, PrivateNamesReachAServerOfTheNetwork) {
  const Access open({.private_hosts = true}), closed({});
  for (const char* host : {"vlcache", "vlcache:8080", "host.docker.internal", "host.containers.internal:80",
                           "printer.local", "vlcache.default.svc", "vlcache.default.svc.cluster.local", "MYBOX"}) {
    EXPECT_EQ(status(open, {{"host", host}}), 0) << host;
    EXPECT_EQ(status(closed, {{"host", host}}), 403) << host;
  }
  for (const char* host : {"attacker.example", "attacker.example:8080", "internal.attacker.example", "local.example",
                           "vlcache.svc.attacker.example", "127.0.0.1.attacker.example", ":80"}) {
    EXPECT_EQ(status(open, {{"host", host}}), 403) << host;
  }
}

TEST(Access, UnknownOriginsAreRejected) {
  const Access access({.origins = {"https://chat.example"}});
  const std::string host = "localhost:8080";
  for (const char* origin : {"http://localhost:8080", "https://localhost:8080", "https://chat.example"}) {
    EXPECT_EQ(status(access, {{"host", host}, {"origin", origin}}), 0) << origin;
  }
  for (const char* origin :
       {"https://evil.example", "http://chat.example", "https://chat.example:8443", "null", "x", "http://localhost",
        "http://localhost:80800", "https://chat.example.evil", "http://evil@localhost:8080"}) {
    EXPECT_EQ(status(access, {{"host", host}, {"origin", origin}}), 403) << origin;
    EXPECT_EQ(status(access, {{"host", host}, {"origin", origin}}, "DELETE"), 403) << origin;
    const Access::Verdict read =
        access.check({.method = "GET", .path = "/v1/models", .headers = {{"host", host}, {"origin", origin}}});
    EXPECT_FALSE(read.answer);  // but the browser does not show it
    EXPECT_TRUE(read.headers.empty()) << origin;
  }
  EXPECT_EQ(status(access, {{"host", "localhost"}, {"origin", "http://localhost:80"}}), 0);
  EXPECT_EQ(status(access, {{"host", "localhost:80"}, {"origin", "http://localhost"}}), 0);
}

TEST(Access, AllowedOriginsGetCorsHeaders) {
  const Access access({.origins = {"https://chat.example"}});
  const Headers headers{{"host", "localhost"},
                        {"origin", "https://chat.example"},
                        {"access-control-request-headers", "authorization,x-stainless-os"}};
  const Access::Verdict preflight = access.check({.method = "OPTIONS", .path = "/v1/models", .headers = headers});
  ASSERT_TRUE(preflight.answer);
  EXPECT_EQ(preflight.answer->status, 204);
  EXPECT_EQ(header(preflight.answer->headers, "access-control-allow-headers"), "authorization,x-stainless-os");
  EXPECT_EQ(header(preflight.headers, "access-control-allow-origin"), "https://chat.example");
  const Access::Verdict asked = access.check({.method = "POST", .path = "/v1/x", .headers = headers});
  EXPECT_EQ(header(asked.headers, "access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(header(asked.headers, "vary"), "origin");
  EXPECT_FALSE(Access({}).check({.method = "OPTIONS", .path = "/v1/x", .headers = headers}).answer);
}

TEST(Access, OriginsOfExtensionsAndApps) {
  const struct {
    const char* flag;
    std::vector<const char*> allowed, refused;
  } cases[] = {
      {"chrome-extension://abcdefghijklmnopabcdefghijklmnop",
       {"chrome-extension://abcdefghijklmnopabcdefghijklmnop"},
       {"chrome-extension://bbcdefghijklmnopabcdefghijklmnop", "https://abcdefghijklmnopabcdefghijklmnop"}},
      {"moz-extension://*",
       {"moz-extension://1f3a5c7e-0000-4000-8000-123456789abc"},
       {"chrome-extension://abc", "https://moz-extension", "moz-extension://", "moz-extension://a/b"}},
      {"safari-web-extension://E0A2F5B1-1111-4222-8333-ABCDEF012345",
       {"safari-web-extension://E0A2F5B1-1111-4222-8333-ABCDEF012345",
        "safari-web-extension://e0a2f5b1-1111-4222-8333-abcdef012345"},
       {"safari-web-extension://E0A2F5B1-1111-4222-8333-ABCDEF012346"}},
      {"app://obsidian.md/", {"app://obsidian.md"}, {"app://obsidian.md.evil", "app://obsidian.md:1", "obsidian.md"}},
      {"tauri://localhost", {"tauri://localhost"}, {"http://localhost", "tauri://localhost2"}},
      {"capacitor://localhost", {"capacitor://localhost"}, {"ionic://localhost"}},
      {"vscode-webview://*", {"vscode-webview://1hk6a9ob0fp1ktj5uo4ejm2vlsbo0ub3nfk27jlr7t1ukfc8muh5"}, {"null"}},
      {"app://-", {"app://-"}, {"app://x"}},
      {"https://*.chat.example",
       {"https://a.chat.example", "https://a.b.chat.example", "https://a.chat.example:443"},
       {"https://chat.example", "https://chat.example.evil.com", "https://evilchat.example", "https://.chat.example",
        "http://a.chat.example", "https://a.chat.example:8443", "https://a.chat.example.evil.com",
        "https://evil.com/.chat.example", "https://evil.com?.chat.example", "https://evil.com#.chat.example",
        "https://evil.com\\.chat.example", "https://a@b.chat.example", "https://evil.com:1.chat.example",
        "https://*.chat.example"}},
      {"https://*.chat.example:8443/",
       {"https://a.chat.example:8443"},
       {"https://a.chat.example", "https://chat.example:8443"}},
      {"http://localhost:3000/",
       {"http://localhost:3000"},
       {"http://localhost:30000", "https://localhost:3000", "http://localhost"}},
      {"http://localhost:*",
       {"http://localhost:3000", "http://localhost"},
       {"http://localhost.evil:3000", "http://localhost:x"}},
      {"HTTPS://Chat.Example:443", {"https://chat.example"}, {"https://chat.example:80", "http://chat.example"}},
      {"http://[::1]:3000", {"http://[::1]:3000"}, {"http://[::2]:3000", "http://[::1]"}},
  };
  for (const auto& [flag, allowed, refused] : cases) {
    const Access access({.origins = {flag}});
    for (const char* origin : allowed) {
      for (const char* method : {"POST", "OPTIONS"}) {
        const Access::Verdict verdict =
            access.check({.method = method, .path = "/v1/x", .headers = {{"host", "h.localhost"}, {"origin", origin}}});
        EXPECT_EQ(verdict.answer ? verdict.answer->status : 0, method == std::string("POST") ? 0 : 204)
            << flag << origin;
        EXPECT_EQ(header(verdict.headers, "access-control-allow-origin"), origin) << flag;
      }
    }
    for (const char* origin : refused) {
      EXPECT_EQ(status(access, {{"host", "h.localhost"}, {"origin", origin}}), 403) << flag << " " << origin;
    }
    for (const std::string& start : {std::string(flag), std::string("https://")}) {
      const std::string endless = start + std::string(64 << 10, 'a');
      if (std::string_view(flag).find("://*") == std::string_view::npos) {
        EXPECT_EQ(status(access, {{"host", "h.localhost"}, {"origin", endless}}), 403) << flag;
      }
    }
  }
}

TEST(Access, InvalidOptionsAreErrors) {
  for (const char* origin : {"chat.example",
                             "https://",
                             "ftp://x",
                             "",
                             "null",
                             "https://chat.example//",
                             "https://chat.example/path",
                             "https://*",
                             "http://*:*",
                             "https://*chat.example",
                             "https://chat.*",
                             "https://a.*.example",
                             "https://*.*.example",
                             "https://*.",
                             "https://*.192.168.1.7",
                             "https://*.[::1]",
                             "https://a@chat.example",
                             "https://chat.example:x",
                             "https://chat.example:",
                             "file:///page.html",
                             "://x",
                             "1app://x",
                             "chrome-extension://",
                             "chrome-extension://*x",
                             "app://a b",
                             "**"}) {
    EXPECT_THROW(Access({.origins = {origin}}), Error) << origin;
  }
  try {
    const Access access({.origins = {"https://" + std::string(64 << 10, '/')}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_LT(std::string(e.what()).size(), 400u);
  }
  for (const char* host : {"", "http://x", "a/b"}) EXPECT_THROW(Access({.hosts = {host}}), Error) << host;
  EXPECT_THROW(Access({.keys_file = "/no/such/file"}), Error);
}

class Keys : public testing::Test {
 protected:
  Keys() : file_(std::filesystem::temp_directory_path() / ("vlcache-keys-" + std::to_string(getpid()))) {
    write("alices-key-1234567 alice admin\nbobs-key-123456789 bob\n");
  }
  ~Keys() override { std::filesystem::remove(file_); }
  void write(const std::string& text) const { std::ofstream(file_) << text; }

  std::filesystem::path file_;
};

TEST_F(Keys, AreRequiredExceptWhereOpen) {
  const Access access({.keys_file = file_});
  EXPECT_EQ(status(access, {}), 401);
  EXPECT_EQ(status(access, {{"authorization", "Bearer alices-key-1234567"}}), 0);
  EXPECT_FALSE(access.check({.method = "GET", .path = "/health", .headers = {}}, /*open=*/true).answer);
  EXPECT_EQ(status(access, {{"x-api-key", "bobs-key-123456789"}}), 0);
  EXPECT_EQ(status(access, {{"api-key", "bobs-key-123456789"}}), 0);  // Azure's clients
  EXPECT_EQ(status(access, {{"api-key", "wrong"}}), 401);
  EXPECT_EQ(status(access, {{"authorization", "bearer bobs-key-123456789"}}), 0);
  for (const char* wrong : {"Bearer", "Bearer ", "Bearer bobs-key-12345678", "Basic bobs-key-123456789",
                            "bobs-key-123456789", "Bearer bobs-key-123456789 "}) {
    EXPECT_EQ(status(access, {{"authorization", wrong}}), 401) << wrong;
  }
  const Access::Verdict alice = access.check({.path = "/v1/x", .headers = {{"x-api-key", "alices-key-1234567"}}});
  EXPECT_EQ(alice.caller.name, "alice");
  EXPECT_TRUE(alice.caller.admin);
  const Access::Verdict bob = access.check({.path = "/v1/x", .headers = {{"x-api-key", "bobs-key-123456789"}}});
  EXPECT_FALSE(bob.caller.admin);
  EXPECT_NE(alice.caller.salt, bob.caller.salt);
  EXPECT_TRUE(Access({}).check({.path = "/v1/x"}).caller.admin);
}

TEST_F(Keys, AreReloaded) {
  Access access({.keys_file = file_});
  write("bobs-new-key-12345 bob\n");
  EXPECT_EQ(status(access, {{"x-api-key", "bobs-key-123456789"}}), 0);
  access.reload();
  EXPECT_EQ(status(access, {{"x-api-key", "bobs-key-123456789"}}), 401);
  EXPECT_EQ(status(access, {{"x-api-key", "bobs-new-key-12345"}}), 0);
  write("short\n");
  EXPECT_THROW(access.reload(), Error);
  EXPECT_EQ(status(access, {{"x-api-key", "bobs-new-key-12345"}}), 0);
}

}  // namespace
}  // namespace vlcache
