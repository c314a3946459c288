// Which cells are dropped, against tables made by hand; and the encoder without them, against one that computes all and
// hides them.
#include "model/images/cell_dedup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"
#include "model/images/patch_grid.h"
#include "model/model.h"
#include "ops/ref/ref_impl.h"
#include "tests/fixture_cases.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::array<float, 3> kLevels = {255, 255, 255};

// Every cell is a pixel of one of these grey levels.
ImageTiles grey_levels(const std::vector<std::vector<int>>& rows) {
  ImageTiles image;
  image.allocate(1, std::ssize(rows), std::ssize(rows[0]));
  auto* pixels = reinterpret_cast<float*>(image.pixels.data());
  for (int channel = 0; channel < 3; ++channel) {
    for (const std::vector<int>& row : rows) pixels = std::ranges::copy(row, pixels).out;
  }
  return image;
}

KeptCells kept_of(const std::vector<std::vector<int>>& rows, float tolerance = 0) {
  return dedup_cells(grey_levels(rows), 1, kLevels, {.tolerance = tolerance});
}

TEST(CellDedup, OneCellStandsForAConstantImage) {
  const KeptCells kept = kept_of({{7, 7, 7}, {7, 7, 7}});
  EXPECT_THAT(kept.cells, ElementsAre(0));
  EXPECT_THAT(kept.counts, ElementsAre(6));
  EXPECT_EQ(kept.n_dropped, 5);
  EXPECT_THAT(kept_of({{7}}).cells, ElementsAre(0));
}

TEST(CellDedup, EdgesNeedTheCellsAtTheirBeginning) {
  const KeptCells vertical = kept_of({{1, 1, 5, 5}, {1, 1, 5, 5}, {1, 1, 5, 5}});
  EXPECT_THAT(vertical.cells, ElementsAre(0, 2));
  EXPECT_THAT(vertical.counts, ElementsAre(6, 6));
  const KeptCells horizontal = kept_of({{1, 1, 1}, {5, 5, 5}});
  EXPECT_THAT(horizontal.cells, ElementsAre(0, 3));
  EXPECT_THAT(horizontal.counts, ElementsAre(3, 3));
  // Of a rectangle: its first cell, and the first ones after it to the right and below.
  const KeptCells rectangle = kept_of({{1, 1, 1, 1}, {1, 5, 5, 1}, {1, 5, 5, 1}, {1, 1, 1, 1}});
  EXPECT_THAT(rectangle.cells, ElementsAre(0, 5, 7, 13));
  EXPECT_THAT(rectangle.counts, ElementsAre(7, 4, 2, 3));
}

TEST(CellDedup, BordersHaveOnePrediction) {
  EXPECT_THAT(kept_of({{1, 2, 2, 3}}).cells, ElementsAre(0, 1, 3));
  EXPECT_THAT(kept_of({{1}, {2}, {2}, {3}}).cells, ElementsAre(0, 1, 3));
  EXPECT_THAT(kept_of({{1, 5, 1}, {5, 1, 5}}).cells, ElementsAre(0, 1, 2, 3, 4, 5));  // no neighbour predicts any
}

// A cell is compared with the one that is kept for its prediction, so differences do not add up along a gradient.
TEST(CellDedup, GradientsKeepACellForEveryStepBeyondTheTolerance) {
  const std::vector<std::vector<int>> gradient = {{0, 1, 2, 3, 4, 5}};
  EXPECT_THAT(kept_of(gradient).cells, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(kept_of(gradient, 1 / 255.0f).cells, ElementsAre(0, 2, 4));
  const KeptCells coarse = kept_of(gradient, 2.5f / 255);
  EXPECT_THAT(coarse.cells, ElementsAre(0, 3));
  EXPECT_THAT(coarse.counts, ElementsAre(3, 3));
  // The second line equals the first: each cell is predicted by the one above, as C = A.
  EXPECT_THAT(kept_of({{0, 1, 2, 3}, {0, 1, 2, 3}}).cells, ElementsAre(0, 1, 2, 3));
}

TEST(CellDedup, EveryPixelOfEveryFrameAndChannelCounts) {
  for (int64_t changed = 0; changed < 2 * 3 * 4; ++changed) {
    ImageTiles image;
    image.n_frames = 2;
    image.allocate(1, 2, 4);  // two cells of two pixels a side
    auto* pixels = reinterpret_cast<float*>(image.pixels.data());
    const std::array<float, 3> range = {1, 2, 4};
    const int64_t plane = changed / 4, y = changed / 2 % 2, x = changed % 2;
    pixels[plane * 8 + y * 4 + 2 + x] = range[static_cast<size_t>(plane % 3)] * 3 / 255;
    EXPECT_EQ(dedup_cells(image, 2, range, {.tolerance = 2 / 255.0f}).cells.size(), 2u) << changed;
    EXPECT_EQ(dedup_cells(image, 2, range, {.tolerance = 3 / 255.0f}).cells.size(), 1u) << changed;
  }
}

TEST(CellDedup, SettingsTellTheirResultsApart) {
  const ImageTiles image = grey_levels({{1, 9}});
  const auto setting = [&](const CellDedup& how) { return dedup_cells(image, 1, kLevels, how).setting; };
  EXPECT_NE(setting({.tolerance = 0}), setting({.tolerance = 1e-7f}));
  EXPECT_NE(setting({.tolerance = 0}), setting({.tolerance = 0, .weighted = true}));
}

std::unique_ptr<Model> load_fixture(const std::string& name, Backend& backend) {
  return Model::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/" + name), backend);
}

TEST(CellDedup, OtherModelsAreRefused) {
  const auto backend = make_ref_backend(DType::kF32);
  try {
    check_takes_dedup(load_fixture("llava-clip", *backend)->config());
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("this one (llava) takes tiles of a fixed size"));
  }
  check_takes_dedup(load_fixture("qwen2-vl-flat", *backend)->config());
}

// Attention of the encoder that sees no key of these rows.
class HidingBackend final : public RefBackend {
 public:
  HidingBackend() : RefBackend(DType::kF32) {}
  std::vector<bool> hidden;

  void dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const DenseAttentionArgs& args,
                       const Tensor& out) override {
    const int64_t n_heads = q.dim(1), d = q.dim(2);
    for (size_t part = 1; part < args.offsets.size(); ++part) {
      for (int64_t i = args.offsets[part - 1]; i < args.offsets[part]; ++i) {
        for (int64_t head = 0; head < n_heads; ++head) {
          std::vector<double> mixed(static_cast<size_t>(d), 0);
          double total = 0;
          for (int64_t j = args.offsets[part - 1]; j < args.offsets[part]; ++j) {
            if (hidden[static_cast<size_t>(j)]) continue;
            double logit = 0;
            for (int64_t c = 0; c < d; ++c)
              logit += double{q.row<float>(i)[head * d + c]} * k.row<float>(j)[head * d + c];
            const double p = std::exp(logit * double{args.scale});
            total += p;
            for (int64_t c = 0; c < d; ++c) mixed[static_cast<size_t>(c)] += p * double{v.row<float>(j)[head * d + c]};
          }
          for (int64_t c = 0; c < d; ++c)
            out.row<float>(i)[head * d + c] = static_cast<float>(total > 0 ? mixed[static_cast<size_t>(c)] / total : 0);
        }
      }
    }
  }
};

class PrunedEncoder : public testing::TestWithParam<const char*> {};

TEST_P(PrunedEncoder, EqualsTheWholeOneThatHidesWhatIsDropped) {
  HidingBackend backend;
  const std::unique_ptr<Model> model = load_fixture(GetParam(), backend);
  const VisionConfig& config = *model->config().vision;
  const int64_t rows = 7, cols = 5, area = config.merge * config.merge;
  ImageTiles image;
  image.allocate(1, rows * config.cell(), cols * config.cell());
  std::mt19937 random(3);
  auto* pixels = reinterpret_cast<float*>(image.pixels.data());
  for (int64_t i = 0; i < image.tensor().numel(); ++i) pixels[i] = static_cast<float>(random() % 256) / 128 - 1;
  KeptCells kept{.cells = {}, .counts = {}, .setting = ""};
  for (int32_t i = 0; i < rows * cols; ++i) {
    // The last lines of windows lose all of their cells.
    if (i == 0 || (i < 4 * cols && random() % 2 == 0)) kept.cells.push_back(i), kept.counts.push_back(1);
  }
  const PatchOrder order = patch_order(config, {.rows = rows * config.merge, .cols = cols * config.merge});
  backend.hidden.assign(order.patches.size(), true);
  for (const int32_t cell : kept.cells) {
    for (int64_t k = 0; k < area; ++k)
      backend.hidden[static_cast<size_t>(order.features[static_cast<size_t>(cell * area + k)])] = false;
  }
  const VisionOutput whole = model->encode_image(image);
  backend.hidden.assign(order.patches.size(), false);
  image.kept = kept;
  EXPECT_EQ(model->n_image_tokens(image), std::ssize(kept.cells));
  const VisionOutput pruned = model->encode_image(image);
  ASSERT_EQ(pruned.embeds.rows(), std::ssize(kept.cells));
  ASSERT_EQ(pruned.extra.size(), config.tap_layers.size());
  const auto compare = [&](const Tensor& found, const Tensor& expected) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < kept.cells.size(); ++i) {
      const float *f = found.row<float>(static_cast<int64_t>(i)), *e = expected.row<float>(kept.cells[i]);
      for (int64_t c = 0; c < expected.row_size(); ++c) {
        worst = std::max(worst, double{std::abs(f[c] - e[c])});
        largest = std::max(largest, double{std::abs(e[c])});
      }
    }
    EXPECT_LT(worst, 1e-5 * largest);
  };
  compare(pruned.embeds, whole.embeds);
  for (size_t tap = 0; tap < pruned.extra.size(); ++tap) compare(pruned.extra[tap], whole.extra[tap]);
}

INSTANTIATE_TEST_SUITE_P(, PrunedEncoder,
                         testing::Values("qwen2-vl-nested", "qwen2.5-vl-nested", "qwen3-vl-deepstack",
                                         "paddleocr-vl-nested", "glm-ocr-two"),
                         fixture_test_name<const char*>);

}  // namespace
}  // namespace vlcache
