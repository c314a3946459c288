// Lines of `run --requests`: what they become, and what is said of those that are none.
#include "cli/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

UserRequest read(const std::string& line, const UserRequest& defaults = {}) {
  const RequestLine read = read_request(line, defaults);
  EXPECT_TRUE(read.request) << read.error;
  return read.request.value_or(UserRequest());
}

std::string error_of(const std::string& line) {
  const RequestLine read = read_request(line, {});
  EXPECT_FALSE(read.request) << line;
  return read.error;
}

TEST(Request, TakesItsKeysAndTheDefaults) {
  UserRequest defaults{.system = "s", .raw = true};
  defaults.options.max_tokens = 5;
  const UserRequest r = read(R"({"prompt": "p", "images": "a.png", "temperature": 0.5, "stop": ["x"]})", defaults);
  EXPECT_EQ(r.prompt, "p");
  EXPECT_TRUE(r.raw && r.system == "s" && r.messages.is_null());
  EXPECT_EQ(r.options.max_tokens, 5);
  EXPECT_FLOAT_EQ(r.options.sampling.temperature, 0.5f);
  EXPECT_THAT(r.options.stop, ElementsAre("x"));
  EXPECT_THAT(r.images, ElementsAre("a.png"));
}

TEST(Request, TheIdIsKnownThoughTheRestIsWrong) {
  const RequestLine line = read_request(R"({"id": {"n": 1}, "prompt": 3})", {});
  EXPECT_FALSE(line.request);
  EXPECT_EQ(line.id.dump(), R"({"n":1})");
  EXPECT_THAT(line.error, HasSubstr("prompt"));
  EXPECT_TRUE(read_request("[1]", {}).id.is_null());
}

TEST(Request, DeepNestingIsAnErrorWhereverItIs) {
  std::string deep(100'000, '[');
  deep.append(100'000, ']');
  EXPECT_THAT(error_of(R"({"id": )" + deep + R"(, "prompt": "x"})"), HasSubstr("256"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "stop": )" + deep + "}"), HasSubstr("256"));
}

TEST(Request, PathsWithNulAreRefused) {
  EXPECT_THAT(error_of(R"({"prompt": "x", "images": "\u0000"})"), HasSubstr("NUL"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "images": ["a", "b.png\u0000.txt"]})"), HasSubstr("b.png"));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "\u0000"}]}]})"),
              HasSubstr("NUL"));
}

TEST(Request, PicturesStandInTheOrderOfTheirParts) {
  const UserRequest r = read(R"({"images": ["b1", "b2", "rest"], "messages": [
      {"role": "user", "content": [{"type": "image"}, {"type": "image_url", "image_url": {"url": "file://own1"}}]},
      {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image", "path": "own2"}, {"type": "image"}]},
      {"role": "user", "content": "text"}]})");
  EXPECT_THAT(r.images, ElementsAre("b1", "own1", "own2", "b2", "rest"));
  for (const auto& part : {r.messages[0]["content"][1], r.messages[1]["content"][1]}) {
    EXPECT_EQ(part.dump(), R"({"type":"image"})");
  }
  EXPECT_THAT(error_of(R"({"images": ["one"], "messages": [{"role": "user", "content": [{"type": "image"},
      {"type": "image"}]}]})"),
              HasSubstr("images"));
}

TEST(Request, SeedsGoToTheirEnd) {
  const std::string most = "18446744073709551615";
  EXPECT_EQ(read(R"({"prompt": "x", "seed": )" + most + "}").options.sampling.seed, UINT64_MAX);
  EXPECT_EQ(read(R"({"prompt": "x", "seed": 1e3})").options.sampling.seed, 1000u);
  UserRequest defaults;
  defaults.options.sampling.seed = UINT64_MAX - 1;
  EXPECT_EQ(read(R"({"prompt": "x"})", defaults).options.sampling.seed, UINT64_MAX - 1);
  for (const char* bad : {"-1", "1.5", "18446744073709551616", "\"1\""}) {
    EXPECT_THAT(error_of(R"({"prompt": "x", "seed": )" + std::string(bad) + "}"), HasSubstr("seed")) << bad;
  }
}

TEST(Request, KeepsTheKeysOfMessagesInOrder) {
  const UserRequest r = read(R"({"messages": [{"role": "user", "zeta": 1, "alpha": 2, "content": "x"}]})");
  EXPECT_EQ(r.messages.dump(), R"([{"role":"user","zeta":1,"alpha":2,"content":"x"}])");
}

TEST(Request, ErrorsAreNeverEmpty) {
  for (const char* line : {"", "{", "1", "{}", R"({"prompt": "x", "messages": [1]})", R"({"messages": []})",
                           R"({"messages": [1]})", R"({"messages": [{"role": 1}]})", R"({"raw": true, "messages": 1})",
                           R"({"prompt": "x", "stop_token_ids": [-1]})", R"({"prompt": "x", "top_p": 2})",
                           R"({"prompt": "x", "images": [1]})", R"({"x": 1})"}) {
    EXPECT_NE(error_of(line), "") << line;
  }
}

}  // namespace
}  // namespace vlcache
