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

TEST(Answer, SaysWhyNothingWasCompressed) {
  GenerateResult result;
  result.kv.acts_after_tokens = 32;
  EXPECT_EQ(not_compressed_text(result.kv, "--kv draft"), "");
  EXPECT_FALSE(served_json(result, /*explain=*/false)["kv"].contains("not_compressed"));
  result.kv.n_before_acting = -1;
  const std::string why = "the answer ended within 32 tokens; kv draft compresses the prompt";
  EXPECT_EQ(served_json(result, /*explain=*/false)["kv"]["not_compressed"], why);
  EXPECT_EQ(result_json(result, CacheTotals())["kv"]["not_compressed"], why);
  result.kv.n_before_acting = 32;
  EXPECT_FALSE(result_json(result, CacheTotals())["kv"].contains("not_compressed"));
}

TEST(Answer, ReportsTheFormsOfPages) {
  GenerateResult result;
  result.kv.codec = KvCodec::kInt8;
  EXPECT_FALSE(result_json(result, CacheTotals())["kv"].contains("not_coded"));  // it was never computed
  result.kv.bytes_by_codec = {{KvCodec::kBF16, 4096}, {KvCodec::kInt8, 0}};
  const auto none = served_json(result, /*explain=*/false)["kv"];
  EXPECT_EQ(none["not_coded"], "no head held more than 256 tokens; pages become int8 beyond that");
  EXPECT_EQ(none["bytes_by_codec"].dump(), R"({"bf16":4096,"int8":0})");
  result.kv.bytes_by_codec[KvCodec::kInt8] = 2112;
  result.kv.coded_bytes_read = 6336;
  result.kv.reads = {.bytes = 9000, .saved = 8000};
  const auto some = result_json(result, CacheTotals())["kv"];
  EXPECT_EQ(some["codec"], "int8");
  EXPECT_EQ(some["coded_bytes_read"], 6336);
  EXPECT_EQ(some["bytes_read"], 9000);
  EXPECT_EQ(some["bytes_saved_by_sharing"], 8000);
  EXPECT_EQ(some["bytes_by_codec"]["int8"], 2112);
  EXPECT_FALSE(some.contains("not_coded"));
  result.kv.bytes_by_codec[KvCodec::kInt8] = 0;  // policies that keep no KV have read codes all the same
  EXPECT_FALSE(result_json(result, CacheTotals())["kv"].contains("not_coded"));
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
