#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/buffer.h"
#include "base/json.h"
#include "base/tensor.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::HasSubstr;

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // a tie goes to the even neighbour
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, HalfIncludesSubnormalsAndInfinity) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc500), -5.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(f16_to_float(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(f16_to_float(0x7e01)));
}

TEST(Tensor, ColumnSlicesKeepTheRowStride) {
  std::vector<float> data(6 * 10);
  std::iota(data.begin(), data.end(), 0.0f);
  const Tensor t(data.data(), DType::kF32, {6, 10});
  const Tensor c = t.columns(4, 8).slice_rows(2, 5).view({3, 2, 2});
  EXPECT_EQ(c.describe(), "f32[3, 2, 2]");
  EXPECT_FALSE(c.dense());
  EXPECT_EQ(c.row<float>(1)[3], 37.0f);
  EXPECT_EQ(t.view({4, 15}).row<float>(3)[0], 45.0f);
}

TEST(Buffer, IsZeroedAlignedAndReleasesPages) {
  Buffer b(3 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
  EXPECT_EQ(b.data()[12345], std::byte{0});
  b.data()[5000] = std::byte{1};
  b.data()[100] = std::byte{2};
  b.release(1, 8192);  // only whole pages inside the range
  EXPECT_EQ(b.data()[5000], std::byte{0});
  EXPECT_EQ(b.data()[100], std::byte{2});
  Buffer moved = std::move(b);
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(moved.bytes(), 3 << 20);
}

TEST(Buffer, RejectsSizesBeyondMemory) {
  try {
    Buffer b(int64_t{1} << 60);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kMemory);
    EXPECT_THAT(e.what(), HasSubstr("1152921504606846976"));
  }
}

TEST(Json, ErrorsNameFileKeyAndValue) {
  const Json json =
      parse_json(R"({"n": 3, "text": "12", "half": 1.5, "big": 1e300, "deep": {"x": null}})", "config.json");
  const JsonObject o(json, "config.json");
  EXPECT_EQ(o.integer("n"), 3);
  EXPECT_EQ(o.integer("missing", 9), 9);
  EXPECT_EQ(error_of([&] { o.integer("text"); }), "config.json: text: expected an integer, found \"12\"");
  EXPECT_EQ(error_of([&] { o.integer("half"); }), "config.json: half: expected an integer, found 1.5");
  EXPECT_THAT(error_of([&] { o.integer("big"); }), HasSubstr("expected an integer"));
  EXPECT_EQ(error_of([&] { o.object("deep").string("x"); }), "config.json: deep: x: expected a string, found nothing");
  EXPECT_EQ(error_of([&] { o.boolean("n", false); }), "config.json: n: expected true or false, found 3");
}

TEST(Json, HostileTextIsRejected) {
  EXPECT_THAT(error_of([] { parse_json("{\"a\": ", "x"); }), HasSubstr("x: not valid JSON at byte"));
  EXPECT_THAT(error_of([] { parse_json(std::string(200000, '['), "x"); }), HasSubstr("nests deeper than 256"));
  EXPECT_THAT(error_of([] { parse_json("", "x"); }), HasSubstr("not valid JSON"));
  EXPECT_EQ(parse_json(R"(["[[[[", "\"["])", "x").size(), 2u);
}

TEST(Json, FilesHaveALimitAndAClearError) {
  const auto path = std::filesystem::temp_directory_path() / "vlcache_base_test.json";
  std::ofstream(path) << "[1, 2, 3]";
  EXPECT_EQ(load_json(path).size(), 3u);
  EXPECT_THAT(error_of([&] { read_text_file(path, 4); }), HasSubstr("larger than the limit of 4 bytes"));
  std::filesystem::remove(path);
  EXPECT_THAT(error_of([&] { load_json(path); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([] { load_json(std::filesystem::temp_directory_path()); }), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace vlcache
