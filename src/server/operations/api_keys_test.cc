// Files of keys as people write them, and unknown keys.
#include "server/operations/api_keys.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::string_view kFile = R"(# who may ask
0123456789abcdef0123 alice admin

  fedcba9876543210fedc	bob
another-key-of-bob-1234 bob
a-key-without-a-name
)";

TEST(ApiKeys, AreFoundWithTheirNames) {
  const ApiKeys keys = ApiKeys::parse(kFile, "keys");
  EXPECT_EQ(keys.size(), 4u);
  const std::optional<Caller> alice = keys.find("0123456789abcdef0123"), bob = keys.find("fedcba9876543210fedc"),
                              bob_too = keys.find("another-key-of-bob-1234"), other = keys.find("a-key-without-a-name");
  ASSERT_TRUE(alice && bob && bob_too && other);
  EXPECT_EQ(alice->name, "alice");
  EXPECT_TRUE(alice->admin);
  EXPECT_FALSE(bob->admin);
  EXPECT_TRUE(other->name.starts_with("key-"));
  EXPECT_EQ(other->name.find("without"), std::string::npos);  // it appears in logs
  EXPECT_EQ(bob->salt, bob_too->salt);
  EXPECT_NE(bob->salt, alice->salt);
  EXPECT_NE(bob->salt, other->salt);
  EXPECT_TRUE(bob->salt);
}

TEST(ApiKeys, CountsOfAllTenantsAreForAdminsOrTheOnlyTenant) {
  const auto sees = [](std::string_view text, std::string_view key) {
    return ApiKeys::parse(text, "keys").find(key)->sees_totals;
  };
  EXPECT_TRUE(sees(kFile, "0123456789abcdef0123"));
  EXPECT_FALSE(sees(kFile, "fedcba9876543210fedc"));
  EXPECT_FALSE(sees(kFile, "a-key-without-a-name"));
  EXPECT_TRUE(sees("fedcba9876543210fedc bob\nanother-key-of-bob-1234 bob\n", "another-key-of-bob-1234"));
  EXPECT_TRUE(sees("a-key-without-a-name\n", "a-key-without-a-name"));
  EXPECT_FALSE(sees("a-key-without-a-name\nanother-without-a-name\n", "a-key-without-a-name"));
}

TEST(ApiKeys, OtherStringsAreNotKeys) {
  const ApiKeys keys = ApiKeys::parse(kFile, "keys");
  for (const char* wrong : {"", "0123456789abcdef012", "0123456789abcdef01234", "0123456789ABCDEF0123", "alice",
                            "0123456789abcdef0123 alice", "# who may ask"}) {
    EXPECT_FALSE(keys.find(wrong)) << wrong;
  }
}

TEST(ApiKeys, ErrorsNameTheMistakeButNotTheKey) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "at least one line"},
           {"# nothing\n", "at least one line"},
           {"\nshort-secret\n", "line 2: expected a key of 16"},
           {"0123456789secret admin\n", "line 1: expected a name"},
           {"0123456789secret n a m e\n", "'admin' after the name"},
           {"0123456789secret name root\n", "'admin' after the name"},
           {"0123456789secret na/me\n", "expected a name"},
           {"0123456789secret a\n0123456789secret b\n", "line 2: expected another key"}}) {
    try {
      ApiKeys::parse(text, "keys.txt");
      FAIL() << text;
    } catch (const Error& e) {
      const std::string what = e.what();
      EXPECT_EQ(e.code(), ErrorCode::kInput);
      EXPECT_TRUE(what.starts_with("keys.txt: ")) << what;
      EXPECT_NE(what.find(says), what.npos) << what;
      EXPECT_EQ(what.find("secret"), what.npos) << what;
    }
  }
}

}  // namespace
}  // namespace vlcache
