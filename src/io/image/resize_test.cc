// The resampler against Pillow's results.
#include "io/image/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/image/pattern_testing.h"
#include "io/image/resize_kernels.h"

namespace vlcache {
namespace {

TEST(Resize, EqualsPillowToTheBit) {
  const Json rows = load_json(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/images/resize.json");
  ASSERT_GT(rows.size(), 200u);
  for (const Json& row : rows) {
    SCOPED_TRACE(row.dump());
    const Image source = pattern(row["from"][0].get<int64_t>(), row["from"][1].get<int64_t>());
    const int64_t width = row["to"][0].get<int64_t>(), height = row["to"][1].get<int64_t>();
    const Image image = resize(source, width, height, static_cast<Resample>(row["filter"].get<int>()));
    ASSERT_EQ(image.width, width);
    ASSERT_EQ(image.height, height);
    EXPECT_EQ(sha256_hex(image.rgb.data(), image.rgb.size()), row["sha256"].get<std::string>());
  }
}

TEST(Resize, KernelsEqualThePortableLoops) {
  const Image source = pattern(40, 9);
  std::vector<int32_t> weights(5 * 16 * 3), first{0, 3, 11, 20, 24};
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<int32_t>((i * 2654435761u >> 9) % 900000) - 300000;
  const HorizontalPass pass{first.data(), weights.data(), 16, 5};
  std::vector<uint8_t> fast(15), plain(15);
  resample_row(pass, source.row(4), fast.data());
  resample_row_portable(pass, source.row(4), plain.data());
  EXPECT_EQ(fast, plain);
  EXPECT_NE(std::count(plain.begin(), plain.end(), 0), 15);
  for (const int64_t n : {1, 31, 32, 33, 117}) {
    std::vector<uint8_t> fast_row(static_cast<size_t>(n)), plain_row(static_cast<size_t>(n));
    const RowBlend blend{&weights[7], 8, source.row(0), 120};
    combine_rows(blend, n, fast_row.data());
    combine_rows_portable(blend, n, plain_row.data());
    EXPECT_EQ(fast_row, plain_row) << n;
  }
}

TEST(Resize, KeepsAnImageOfTheTargetSize) {
  const Image source = pattern(31, 17);
  for (int filter = 0; filter <= 5; ++filter)
    EXPECT_EQ(resize(source, 31, 17, static_cast<Resample>(filter)).rgb, source.rgb);
}

TEST(Resize, RejectsInvalidSizes) {
  const Image source = pattern(31, 17);
  const ImageLimits limits{.max_pixels = 10000, .max_side = 500};
  EXPECT_THROW(resize(source, 0, 5, Resample::kBicubic), Error);
  EXPECT_THROW(resize(source, 5, -1, Resample::kNearest), Error);
  EXPECT_THROW(resize(source, 101, 100, Resample::kBicubic, limits), Error);
  EXPECT_THROW(resize(source, 501, 1, Resample::kBicubic, limits), Error);
  EXPECT_THROW(resize(source, 600, 1, Resample::kBicubic, {.max_pixels = 10000}),
               Error);  // 600 x 17 between the passes
  EXPECT_THROW(resize(source, int64_t{1} << 62, 4, Resample::kBox), Error);
  EXPECT_EQ(resize(source, 100, 100, Resample::kBicubic, limits).rgb.size(), 30000u);
}

TEST(CutOut, CropsAndPads) {
  const Image source = pattern(9, 7);
  const Image part = cut_out(source, {.x = 2, .y = 3, .width = 4, .height = 2});
  ASSERT_EQ(part.rgb.size(), 24u);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(part.row(1)[i], source.row(4)[6 + i]);
  const Image framed = cut_out(part, {.x = -1, .y = -2, .width = 6, .height = 5}, {10, 20, 30});
  EXPECT_EQ(cut_out(framed, {.x = 1, .y = 2, .width = 4, .height = 2}).rgb, part.rgb);
  const std::vector<uint8_t> top(framed.rgb.begin(), framed.rgb.begin() + 6);
  EXPECT_EQ(top, (std::vector<uint8_t>{10, 20, 30, 10, 20, 30}));
  EXPECT_EQ(framed.row(2)[0], 10);
  EXPECT_EQ(framed.row(2)[17], 30);
  EXPECT_EQ(cut_out(part, {.width = 5, .height = 3}).row(2)[14], 0);
}

TEST(CutOut, CanMissTheImageOrCropOneSideAndPadTheOther) {
  const Image source = pattern(9, 7);
  const Image beside = cut_out(source, {.x = 20, .y = -30, .width = 2, .height = 3}, {1, 2, 3});
  for (size_t i = 0; i < beside.rgb.size(); ++i) EXPECT_EQ(beside.rgb[i], 1 + i % 3);
  const Image mixed = cut_out(source, {.x = 3, .y = -1, .width = 2, .height = 9});
  EXPECT_EQ(std::memcmp(mixed.row(1), source.row(0) + 9, 6), 0);
  EXPECT_EQ(std::memcmp(mixed.row(7), source.row(6) + 9, 6), 0);
  EXPECT_EQ(mixed.row(0)[0] + mixed.row(8)[5], 0);
}

TEST(CutOut, RejectsSizesBeyondTheLimits) {
  const Image line(262144, 1);
  EXPECT_THROW(cut_out(line, {.width = 262144, .height = 262144}), Error);  // 206 GB
  EXPECT_THROW(cut_out(line, {.width = 262145, .height = 1}), Error);
  EXPECT_THROW(cut_out(line, {.width = 0, .height = 1}), Error);
}

TEST(Resize, SpreadsChannelsOverPlanes) {
  ChannelTables tables{};
  for (size_t c = 0; c < 3; ++c) {
    for (size_t v = 0; v < 256; ++v) tables[c][v] = static_cast<float>(1000 * c + v);
  }
  const Image source = pattern(5, 3);
  std::vector<float> planes(45);
  to_planes(source, tables, planes);
  for (size_t i = 0; i < 15; ++i) {
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(planes[c * 15 + i], static_cast<float>(1000 * c + source.rgb[3 * i + c]));
  }
}

}  // namespace
}  // namespace vlcache
