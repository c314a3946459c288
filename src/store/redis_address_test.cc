// URLs of Redis servers, and that no message about them holds a password.
#include "store/redis_address.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "store/store_testing.h"

namespace vlcache {
namespace {

using RedisUrls = StoreTest;

TEST_F(RedisUrls, Parts) {
  const auto parts = [](std::string_view url) {
    const RedisAddress a = parse_redis_url(url);
    return a.user + "|" + a.password + "|" + a.seeds[0].host + "|" + std::to_string(a.seeds[0].port) + "|" +
           std::to_string(a.db);
  };
  EXPECT_EQ(parts("redis://localhost"), "||localhost|6379|0");
  EXPECT_EQ(parts("redis://localhost/"), "||localhost|6379|0");
  EXPECT_EQ(parts("redis://10.0.0.1:7000/15"), "||10.0.0.1|7000|15");
  EXPECT_EQ(parts("redis://:pw@h"), "|pw|h|6379|0");
  EXPECT_EQ(parts("redis://ann:pw@h:1/2"), "ann|pw|h|1|2");
  EXPECT_EQ(parts("redis://a%40b:p%3A%2f@h"), "a@b|p:/|h|6379|0");
  EXPECT_EQ(parts("redis://ann:p@ss:/w@h:1"), "ann|p@ss:/w|h|1|0");
  EXPECT_EQ(parts("redis://[::1]:7000/1"), "||::1|7000|1");
  EXPECT_EQ(parse_redis_url("redis://u:p@[::1]/1").shown(), "redis://[::1]:6379/1");
  EXPECT_EQ(parse_redis_url("redis://u:p@h:9").shown(), "redis://h:9/0");
}

TEST_F(RedisUrls, ErrorsDoNotRepeatTheUrl) {
  for (const char* url : {"",
                          "localhost",
                          "http://hunter2:hunter2@h",
                          "redis://",
                          "redis://:hunter2@",
                          "redis://u:hunter2@h:0",
                          "redis://u:hunter2@h:65536",
                          "redis://u:hunter2@h:x",
                          "redis://u:hunter2@h:",
                          "redis://u:hunter2@h/x",
                          "redis://u:hunter2@h/-1",
                          "redis://u:hunter2%@h",
                          "redis://u:hunter2%4@h",
                          "redis://u:hunter2%zz@h",
                          "redis://u:hunter2%00@h",
                          "redis://u@h",
                          "redis://u:hunter2@[::1",
                          "redis://u:hunter2@[::1]x",
                          "redis://u:hunter2@h h",
                          "redis://u:hunter2@h\n",
                          "redis://u:hunter2@h/0/1"}) {
    try {
      parse_redis_url(url);
      ADD_FAILURE() << url;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      EXPECT_EQ(std::string(error.what()).find("hunter2"), std::string::npos) << error.what();
    }
  }
}

TEST_F(RedisUrls, PasswordFiles) {
  const auto read = [&](const std::string& text, std::string_view url = "redis://ann@h") {
    write_file(root_ / "password", std::as_bytes(std::span(text)));
    return parse_redis_url(url, root_ / "password").password;
  };
  EXPECT_EQ(read("secret"), "secret");
  EXPECT_EQ(read("sec%40 ret\r\nmore\n"), "sec%40 ret");
  EXPECT_EQ(read("secret\n", "redis://h"), "secret");
  EXPECT_EQ(read(std::string(4096, 'x') + "\n"), std::string(4096, 'x'));
  EXPECT_THROW(read(""), Error);
  EXPECT_THROW(read("\nsecret"), Error);
  EXPECT_THROW(read(std::string(4097, 'x')), Error);
  EXPECT_THROW(read(std::string(1 << 20, 'x')), Error);
  EXPECT_THROW(read("secret", "redis://ann:other@h"), Error);
  EXPECT_THROW(parse_redis_url("redis://h", root_ / "none"), Error);
  EXPECT_THROW(parse_redis_url("redis://h", root_), Error);
}

}  // namespace
}  // namespace vlcache
