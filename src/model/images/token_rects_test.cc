// Where image tokens lie, against the pixels that every family's processor produces from known images.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "io/checkpoint/checkpoint.h"
#include "model/family.h"
#include "model/processors/image_processor.h"

namespace vlcache {
namespace {

constexpr int64_t kTile = 28, kPatch = 7;

// Values are level / 255: no statistics.
std::string processor(const std::string& type, const std::string& more) {
  return R"({"image_processor_type":")" + type + R"(","image_mean":0,"image_std":1,)" + more + "}";
}

struct Case {
  std::string name, config, processor;
  double least_share, most_share;  // of the image's area that the rectangles cover together; square images: 1
};

std::vector<Case> cases() {
  const std::string vision =
      R"("vision_config":{"image_size":28,"patch_size":7},"image_token_index":5,"image_token_id":5)";
  const std::string llava = R"({"model_type":"llava",)" + vision + "}";
  const std::string full = R"({"model_type":"llava","vision_feature_select_strategy":"full",)" + vision + "}";
  const std::string pins = R"("image_grid_pinpoints":[[28,56],[56,28],[56,56],[28,84],[84,28]])";
  const std::string next = R"({"model_type":"llava_next",)" + pins + "," + vision + "}";
  const std::string tiled = R"({"model_type":"idefics3","scale_factor":2,)" + vision + "}";
  const std::string one = R"({"model_type":"smolvlm","scale_factor":4,)" + vision + "}";
  const std::string clip = R"("size":{"shortest_edge":28},"crop_size":28)";
  const std::string tiles = R"("size":{"longest_edge":112},"max_image_size":{"longest_edge":28})";
  return {
      {"LLaVA cut", llava, processor("CLIPImageProcessor", clip), 0.2, 0.7},
      {"LLaVA cut, class token", full, processor("CLIPImageProcessor", clip), 0.2, 0.7},
      {"LLaVA with bars", llava, processor("LlavaImageProcessor", R"("do_pad":true,)" + clip), 0.999, 1.001},
      {"padded n_after", llava, processor("SiglipImageProcessor", R"("size":[21,25],"do_pad":true,"pad_size":[28,28])"),
       0.999, 1.001},
      // unpad_image may round away up to a line of patches on each side.
      {"LLaVA-NeXT", next, processor("LlavaNextImageProcessor", pins + "," + clip), 0.7, 1.001},
      {"Idefics3 split", tiled, processor("Idefics3ImageProcessor", tiles), 0.999, 1.001},
      {"SmolVLM split", one,
       processor("SmolVLMImageProcessor", R"("size":{"longest_edge":224},"max_image_size":{"longest_edge":28})"), 0.999,
       1.001},
      {"Idefics3 whole", tiled, processor("Idefics3ImageProcessor", R"("do_image_splitting":false,)" + tiles), 0.999,
       1.001},
  };
}

std::unique_ptr<ImageProcessor> load(const std::string& settings) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("vlcache_rects_" + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "preprocessor_config.json") << settings;
  auto loaded = load_image_processor(Checkpoint(dir), "");
  std::filesystem::remove_all(dir);
  return loaded;
}

using Colour = std::array<double, 3>;

// Upper left, upper right, lower left, lower right.
constexpr std::array<std::array<uint8_t, 3>, 4> kQuadrants = {
    {{250, 20, 40}, {30, 240, 60}, {50, 70, 245}, {240, 230, 10}}};

Image quadrants(int64_t width, int64_t height) {
  Image image(width, height);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const size_t q = (2 * y >= height ? 2u : 0u) + (2 * x >= width ? 1u : 0u);
      for (size_t c = 0; c < 3; ++c) image.row(y)[3 * x + static_cast<int64_t>(c)] = kQuadrants[q][c];
    }
  }
  return image;
}

// Red says how far to the right a pixel lies, green how far down.
Image slope(int64_t width, int64_t height) {
  Image image(width, height);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      image.row(y)[3 * x] = static_cast<uint8_t>((2 * x + 1) * 255 / (2 * width));
      image.row(y)[3 * x + 1] = static_cast<uint8_t>((2 * y + 1) * 255 / (2 * height));
    }
  }
  return image;
}

// The mean of the pixels that token `row` is made of.
Colour mean_of(const ModelConfig& config, const ImageTiles& tiles, int64_t row) {
  const int64_t cell = kPatch * config.projector.scale, side = kTile / cell;
  const int64_t n_class = config.vision->n_class_features(), per_tile = side * side + n_class;
  const int64_t tile = row / per_tile, place = row % per_tile - n_class;
  const float* pixels = tiles.tensor().row<float>(tile);
  Colour mean{};
  for (size_t c = 0; c < 3; ++c) {
    for (int64_t y = place / side * cell; y < (place / side + 1) * cell; ++y) {
      for (int64_t x = place % side * cell; x < (place % side + 1) * cell; ++x)
        mean[c] += pixels[(static_cast<int64_t>(c) * kTile + y) * kTile + x] / static_cast<double>(cell * cell);
    }
  }
  return mean;
}

// The tokens and rectangles of one case for an image.
struct Placing {
  ModelConfig config;
  ImageTiles tiles;
  std::vector<int32_t> rows;
  std::vector<std::optional<PixelRect>> rects;
  float cell_width = 0,
        cell_height = 0;  // of the image, in a token; where padding is part of it, more than its rectangle

  Placing(const Case& c, const Image& image)
      : config(parse_model_config(parse_json(c.config, "config.json"), "config.json")),
        tiles(load(c.processor)->process(image)),
        rows(config.family->token_rows(config, tiles)),
        rects(token_rects(config, tiles)) {
    const PixelRect& shown = tiles.shown[tiles.overview == 0 ? 1 : 0];
    const auto share = static_cast<float>(kPatch * config.projector.scale) / kTile;
    cell_width = (shown.right - shown.left) * share;
    cell_height = (shown.bottom - shown.top) * share;
  }
  bool is_whole(const PixelRect& r) const {
    return r.right - r.left > 0.99f * cell_width && r.bottom - r.top > 0.99f * cell_height;
  }
};

class TokenRects : public testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  const int64_t width_ = GetParam().first, height_ = GetParam().second;
};

TEST_P(TokenRects, ShowTheColourOfTheirQuadrant) {
  int n_fine = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Placing p(c, quadrants(width_, height_));
    ASSERT_EQ(p.rects.size(), p.rows.size());
    std::array<int, 4> seen{};
    std::set<float> lefts, tops;
    for (size_t i = 0; i < p.rects.size(); ++i) {
      if (!p.rects[i] || !p.is_whole(*p.rects[i])) continue;
      const PixelRect& r = *p.rects[i];
      // Tokens across a border mix colours, and the filters reach some pixels further.
      lefts.insert(r.left), tops.insert(r.top);
      const float mid_x = static_cast<float>(width_) / 2, mid_y = static_cast<float>(height_) / 2;
      const float reach_x = 0.4f * (r.right - r.left), reach_y = 0.4f * (r.bottom - r.top);
      const bool left = mid_x > r.right + reach_x, right = mid_x < r.left - reach_x;
      const bool above = mid_y > r.bottom + reach_y, below = mid_y < r.top - reach_y;
      if (!(left || right) || !(above || below)) continue;
      const size_t q = (below ? 2u : 0u) + (right ? 1u : 0u);
      const Colour mean = mean_of(p.config, p.tiles, p.rows[i]);
      for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(mean[k], kQuadrants[q][k] / 255.0, 0.03) << "token " << i;
      ++seen[q];
    }
    // With at least four cells a side, every quadrant contains one.
    if (lefts.size() < 4 || tops.size() < 4 || c.most_share < 1) continue;
    for (const int n : seen) EXPECT_GT(n, 0);
    ++n_fine;
  }
  EXPECT_GE(n_fine, 2);
}

TEST_P(TokenRects, CoverThePixelsOfTheirTokens) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Placing p(c, slope(width_, height_));
    int n_compared = 0;
    for (size_t i = 0; i < p.rects.size(); ++i) {
      if (!p.rects[i] || !p.is_whole(*p.rects[i])) continue;
      const PixelRect& r = *p.rects[i];
      const Colour mean = mean_of(p.config, p.tiles, p.rows[i]);
      // A tenth of a token; at the image's edge the filters bend the slope a little.
      EXPECT_NEAR(mean[0] * static_cast<double>(width_), (r.left + r.right) / 2, 0.1 * p.cell_width + 0.5)
          << "token " << i;
      EXPECT_NEAR(mean[1] * static_cast<double>(height_), (r.top + r.bottom) / 2, 0.1 * p.cell_height + 0.5)
          << "token " << i;
      ++n_compared;
    }
    // Bars may be part of every token of an image that is far from square.
    EXPECT_TRUE(n_compared > 0 || (c.name == "LLaVA with bars" && width_ != height_));
  }
}

TEST_P(TokenRects, CoverTheImageOnce) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Placing p(c, quadrants(width_, height_));
    double area = 0;
    for (const auto& r : p.rects) {
      if (!r) continue;
      EXPECT_TRUE(r->left >= 0 && r->top >= 0 && r->left < r->right && r->top < r->bottom);
      EXPECT_TRUE(r->right <= static_cast<float>(width_) && r->bottom <= static_cast<float>(height_));
      area += double{r->right - r->left} * double{r->bottom - r->top};
    }
    const double share = area / static_cast<double>(width_ * height_);
    const bool square = width_ == height_;
    EXPECT_GE(share, square ? 0.999 : c.least_share);
    EXPECT_LE(share, square ? 1.001 : c.most_share);
  }
}

TEST_P(TokenRects, NewlinesOverviewsAndClassTokensHaveNoRectangle) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Placing p(c, quadrants(width_, height_));
    const int64_t side = kTile / kPatch / p.config.projector.scale, n_class = p.config.vision->n_class_features();
    const int64_t per_tile = side * side + n_class;
    int n_none = 0;
    for (size_t i = 0; i < p.rows.size(); ++i) {
      const bool newline = p.rows[i] == kNewlineRow;
      const bool overview = p.tiles.n_tiles > 1 && p.rows[i] / per_tile == p.tiles.overview;
      const bool class_token = n_class == 1 && p.rows[i] % per_tile == 0;
      if (newline || overview || class_token) {
        EXPECT_FALSE(p.rects[i]) << "token " << i;
        ++n_none;
      }
    }
    EXPECT_EQ(n_none > 0, p.tiles.n_tiles > 1 || n_class == 1);
    EXPECT_EQ(p.tiles.overview, p.tiles.n_tiles == 1 ? -1 : c.name == "LLaVA-NeXT" ? 0 : p.tiles.n_tiles - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Images, TokenRects,
                         testing::Values(std::pair(120, 120), std::pair(200, 100), std::pair(90, 160),
                                         std::pair(64, 190)));

}  // namespace
}  // namespace vlcache
