// URLs of Redis servers, and that no message about them holds a password.
#include "store/redis/address.h"

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

TEST_F(RedisUrls, Clusters) {
  const auto parts = [](std::string_view url) {
    const RedisAddress a = parse_redis_url(url);
    std::string text = a.user + "|" + a.password + "|" + (a.tls ? "tls " : "") + (a.cluster ? "cluster" : "");
    for (const RedisNode& node : a.seeds) text += " " + node.shown();
    EXPECT_EQ(parse_redis_url(a.shown()).seeds, a.seeds);
    EXPECT_EQ(a.shown().find("pw"), std::string::npos);
    return text;
  };
  EXPECT_EQ(parts("redis://h"), "|| h:6379");
  EXPECT_EQ(parts("rediss://:pw@h:1/3"), "|pw|tls  h:1");
  EXPECT_EQ(parts("redis+cluster://h"), "||cluster h:6379");
  EXPECT_EQ(parts("redis+cluster://ann:p,w@a:1,[::1]:2,b/0"), "ann|p,w|cluster a:1 [::1]:2 b:6379");
  EXPECT_EQ(parts("rediss+cluster://a,a,b/"), "||tls cluster a:6379 b:6379");
  for (const char* url :
       {"redis://a,b", "rediss://a,b", "redis+cluster://a,", "redis+cluster://,a", "redis+cluster://a,,b",
        "redis+cluster://", "redis+cluster://a/1", "redis+cluster://a:0", "redis+tls://a", "redisss://a"}) {
    EXPECT_THROW(parse_redis_url(url), Error) << url;
  }
}

TEST_F(RedisUrls, SocketsAndOtherNames) {
  const auto parts = [](std::string_view url) {
    const RedisAddress a = parse_redis_url(url);
    const RedisAddress again = parse_redis_url(a.shown());
    EXPECT_EQ(again.seeds, a.seeds);
    EXPECT_EQ(again.db, a.db);
    EXPECT_EQ(a.shown().find("pw"), std::string::npos);
    return a.user + "|" + a.password + "|" + a.shown();
  };
  EXPECT_EQ(parts("unix:///run/redis.sock"), "||unix:///run/redis.sock");
  EXPECT_EQ(parts("unix:///run/redis.sock?db=2"), "||unix:///run/redis.sock?db=2");
  EXPECT_EQ(parts("unix://ann:pw%40@/run/r.sock?db=0"), "ann|pw@|unix:///run/r.sock");
  EXPECT_EQ(parts("unix:///run/r.sock?username=ann&password=pw&db=3"), "ann|pw|unix:///run/r.sock?db=3");
  EXPECT_EQ(parts("redis+unix:///a%20b/@/r?"), "||unix:///a%20b/%40/r");
  EXPECT_EQ(parts("redis+socket:///r?virtual_host=4"), "||unix:///r?db=4");
  EXPECT_EQ(parts("redis-socket:///r?database=5"), "||unix:///r?db=5");
  EXPECT_EQ(parts("valkey://h"), "||redis://h:6379/0");
  EXPECT_EQ(parts("valkeys://ann:pw@h:1/2"), "ann|pw|rediss://h:1/2");
  EXPECT_EQ(parts("valkeys+cluster://a,b"), "||rediss+cluster://a:6379,b:6379");
  EXPECT_EQ(parts("redis://h?db=2"), "||redis://h:6379/2");
  EXPECT_TRUE(is_redis_url("unix:///r") && is_redis_url("valkey://h"));
  for (const std::string& url :
       {std::string("unix://"), std::string("unix://run/redis.sock"), std::string("unix:/run/r"),
        std::string("unix:///r?db=x"), std::string("unix:///r?socket_timeout=1"), std::string("unix:///r%0"),
        std::string("unix:///r%00"), "unix:///" + std::string(107, 'a'), std::string("redis:///run/r"),
        std::string("valkey+cluster://a?db=1"), std::string("unixs:///r"), std::string("unix://ann@/r")}) {
    EXPECT_THROW(parse_redis_url(url), Error) << url;
  }
}

TEST_F(RedisUrls, HostPatterns) {
  const auto covers = [](std::string_view patterns, std::string_view host) {
    return host_matches(parse_host_patterns(patterns), host);
  };
  EXPECT_TRUE(covers("a,10.0.0.7", "10.0.0.7"));
  EXPECT_TRUE(covers("Node-1", "nODE-1"));
  EXPECT_FALSE(covers("node-1", "node-11"));
  EXPECT_TRUE(covers("*.example.com", "a.b.Example.com"));
  EXPECT_FALSE(covers("*.example.com", "example.com"));
  EXPECT_FALSE(covers("*.example.com", ".example.com"));
  EXPECT_FALSE(covers("*.example.com", "aexample.com"));
  EXPECT_TRUE(covers("10.0.0.0/8", "10.255.1.2"));
  EXPECT_FALSE(covers("10.0.0.0/8", "11.0.0.0"));
  EXPECT_FALSE(covers("10.0.0.0/8", "10.example.com"));
  EXPECT_TRUE(covers("10.0.0.128/25", "10.0.0.200"));
  EXPECT_FALSE(covers("10.0.0.128/25", "10.0.0.100"));
  EXPECT_TRUE(covers("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(covers("0.0.0.0/0", "::1"));
  EXPECT_TRUE(covers("fd00::/8", "fdff::1"));
  EXPECT_TRUE(covers("[::1]", "0:0::1"));
  EXPECT_FALSE(covers("", "a"));
  for (const char* patterns : {",", "a,,b", "10.0.0.0/33", "10.0.0/8", "a/8", "fd00::/129", "10.0.0.0/", "*", "*.",
                               "a.*", "*a", "*.*.a", "a b", "a\n"}) {
    EXPECT_THROW(parse_host_patterns(patterns), Error) << patterns;
  }
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
                          "unix://u:hunter2@r",
                          "unix:///r?password=hunter2&x=1",
                          "redis://h?hunter2",
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
