// Positions of images and videos by tables of our own, from the papers' rules (arXiv:2409.12191, 2502.13923): one
// beginning for all units of a video, time by units or seconds, and what follows after the largest component.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/prompt/prompt.h"
#include "engine/prompt/video_testing.h"

namespace vlcache {
namespace {

// An image, or a unit of a video, of rows x cols tokens.
ImageTiles tiles(const ModelConfig& config, int64_t rows, int64_t cols, std::optional<VideoUnit> unit = {}) {
  ImageTiles image;
  image.n_tiles = 1;
  image.height = rows * config.vision->cell();
  image.width = cols * config.vision->cell();
  image.unit = unit;
  return image;
}

struct Placed {
  explicit Placed(const char* model) : config(Model::read_config(Checkpoint(VideoFixture(model, 0).dir))) {}

  Placed& text(int32_t n) {
    n_tokens += n;
    return *this;
  }
  Placed& image(int32_t rows, int32_t cols, std::optional<VideoUnit> unit = {}) {
    spans.push_back({n_tokens, n_tokens + rows * cols, static_cast<int32_t>(images.size()), 0});
    images.push_back(tiles(config, rows, cols, unit));
    n_tokens += rows * cols;
    return *this;
  }
  // n units of seconds each; after `between` tokens of text.
  Placed& video(int32_t n, int32_t rows, int32_t cols, double seconds, int32_t between = 0) {
    for (int32_t k = 0; k < n; ++k) {
      VideoUnit unit{.first = k == 0};
      if (config.family->unit_time != nullptr) unit.t = config.family->unit_time(config, k, seconds);
      text(between).image(rows, cols, unit);
    }
    return *this;
  }
  std::vector<Position> positions() const { return place_tokens(config, n_tokens, spans, images); }

  const ModelConfig config;
  int32_t n_tokens = 0;
  std::vector<ImageSpan> spans;
  std::vector<ImageTiles> images;
};

// Where the first token of each unit of a video lies, and the token after the last.
std::vector<Position> beginnings(const Placed& placed) {
  const std::vector<Position> all = placed.positions();
  std::vector<Position> found;
  for (const ImageSpan& span : placed.spans) found.push_back(all[static_cast<size_t>(span.begin)]);
  found.push_back(all[static_cast<size_t>(placed.spans.back().end)]);
  for (size_t i = static_cast<size_t>(placed.spans.back().end); i < all.size(); ++i) {
    for (const ImageSpan& span : placed.spans) {
      for (int32_t j = span.begin; j < span.end; ++j)
        EXPECT_GT(all[i].smallest(), all[static_cast<size_t>(j)].largest());
    }
  }
  return found;
}

using Positions = std::vector<Position>;

TEST(PlaceTokens, Qwen2CountsUnits) {
  EXPECT_EQ(beginnings(Placed("qwen2-vl-nested").text(4).video(1, 2, 3, 1).text(2)),
            (Positions{Position::all(4), Position::all(7)}));
  EXPECT_EQ(beginnings(Placed("qwen2-vl-nested").text(4).video(2, 2, 3, 9).text(2)),
            (Positions{Position::all(4), {5, 4, 4}, Position::all(7)}));
  const Positions twelve = beginnings(Placed("qwen2-vl-nested").text(4).video(12, 2, 3, 0.1).text(2));
  ASSERT_EQ(twelve.size(), 13u);
  for (int32_t k = 0; k < 12; ++k) EXPECT_EQ(twelve[static_cast<size_t>(k)], (Position{4 + k, 4, 4}));
  EXPECT_EQ(twelve[12], Position::all(16));  // time went further than rows and columns
}

// 4 positions a second.
TEST(PlaceTokens, Qwen2_5CountsSeconds) {
  EXPECT_EQ(Placed("qwen2.5-vl-nested").config.tokens_per_second, 4);
  EXPECT_EQ(beginnings(Placed("qwen2.5-vl-nested").text(3).video(1, 5, 2, 0.3).text(1)),
            (Positions{Position::all(3), Position::all(8)}));
  EXPECT_EQ(beginnings(Placed("qwen2.5-vl-nested").text(3).video(2, 5, 2, 0.7).text(1)),  // floor(2.8)
            (Positions{Position::all(3), {5, 3, 3}, Position::all(8)}));
  const Positions twelve = beginnings(Placed("qwen2.5-vl-nested").text(3).video(12, 2, 2, 0.55).text(1));
  const std::vector<int32_t> times = {0, 2, 4, 6, 8, 11, 13, 15, 17, 19, 22, 24};  // floor(2.2 k)
  for (size_t k = 0; k < 12; ++k) EXPECT_EQ(twelve[k], (Position{3 + times[k], 3, 3})) << k;
  EXPECT_EQ(twelve[12], Position::all(3 + 24 + 1));
  // Faster than a position a unit: units share a time.
  EXPECT_EQ(beginnings(Placed("qwen2.5-vl-nested").video(3, 1, 2, 0.125).text(1)),
            (Positions{Position::all(0), Position::all(0), {1, 0, 0}, Position::all(2)}));
}

TEST(PlaceTokens, ImagesAndVideosMixed) {
  Placed placed("qwen2.5-vl-nested");
  placed.image(2, 4).text(2).video(3, 2, 2, 0.5).text(2).image(3, 1).text(1).video(2, 1, 1, 2).text(3);
  EXPECT_EQ(beginnings(placed), (Positions{Position::all(0),
                                           Position::all(6),
                                           {8, 6, 6},
                                           {10, 6, 6},
                                           Position::all(13),
                                           Position::all(17),
                                           {25, 17, 17},
                                           Position::all(26)}));
  const Positions all = placed.positions();
  EXPECT_EQ(all[8 + 2 + 4 + 3], (Position{8, 7, 7}));  // the last token of the second unit
}

// Text stands between Qwen3-VL's units: each begins where an image would.
TEST(PlaceTokens, Qwen3PlacesUnitsAsImages) {
  EXPECT_EQ(beginnings(Placed("qwen3-vl-deepstack").text(1).video(3, 2, 3, 7, 2).text(1)),
            (Positions{Position::all(3), Position::all(8), Position::all(13), Position::all(16)}));
}

// Two videos without a token between them are two.
TEST(PlaceTokens, AdjacentVideosAreTwo) {
  EXPECT_EQ(beginnings(Placed("qwen2-vl-nested").video(2, 1, 2, 1).video(2, 1, 2, 1).text(1)),
            (Positions{Position::all(0), {1, 0, 0}, Position::all(2), {3, 2, 2}, Position::all(4)}));
}

}  // namespace
}  // namespace vlcache
