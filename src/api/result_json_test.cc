// What an answer reports about images, and the size at which it stops.
#include "api/result_json.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

KeptImage image(size_t n_tokens) {
  KeptImage image{.width = 30, .height = 20, .shares = {}, .rects = {}};
  image.shares.assign(n_tokens, 2.0f / 3.0f);
  image.rects.assign(n_tokens, PixelRect{.left = 0.4f, .top = 1.6f, .right = 10, .bottom = 20});
  image.rects.back() = std::nullopt;
  return image;
}

TEST(Answer, ReportsTheKeptTokensOfImages) {
  GenerateResult result;
  result.kv.images.push_back(image(2));
  const auto json = served_json(result, /*explain=*/true)["kv"]["images"];
  EXPECT_EQ(json.dump(), R"([{"width":30,"height":20,"kept":[0.667,0.667],"rects":[[0,2,10,20],null]}])");
  EXPECT_FALSE(served_json(result, /*explain=*/false)["kv"].contains("images"));
  EXPECT_FALSE(served_json(GenerateResult(), /*explain=*/true)["kv"].contains("images"));
}

// A stream's client counts as gone with 1 MiB unread: no piece of the stream may be that large.
TEST(Answer, StaysSmallForAnyNumberOfImageTokens) {
  GenerateResult result;
  for (const size_t n_tokens : {16000, 1000, 300}) result.kv.images.push_back(image(n_tokens));
  const auto json = served_json(result, /*explain=*/true)["kv"]["images"];
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["kept"].size(), 16000u);
  EXPECT_EQ(json[1].dump(), R"({"width":30,"height":20})");
  EXPECT_EQ(json[2].dump(), R"({"width":30,"height":20})");
  EXPECT_LT(json.dump().size(), size_t{1} << 19);
}

}  // namespace
}  // namespace vlcache
