// What choosers see before they choose, and what they then choose: against K, V and attention written out.
#include "engine/reuse/preview_hooks.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "engine/reuse/reuse_testing.h"

namespace vlcache {
namespace {

constexpr int32_t kPreviewLayers = 4, kTextBefore = 45;

// Scores as they are, ranked by their sums: how a chooser ranks them is tested beside it.
class Summed final : public ReuseChooser {
 public:
  explicit Summed(std::string_view chooser) : chooser_(parse_reuse_chooser(chooser)) {}
  std::string name() const override { return chooser_->name(); }
  RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const override { return chooser_->plan(n_layers, n_tokens); }
  Preview preview(int32_t n_layers) const override { return chooser_->preview(n_layers); }
  void score(const PreviewedLayer& seen, const Tensor& scores) const override { chooser_->score(seen, scores); }

 private:
  ReuseChooserPtr chooser_;
};

// The same, but the first preview chooses tokens 10, 11, ... of the image.
class TenthFirst final : public ReuseChooser {
 public:
  explicit TenthFirst(std::string_view chooser) : chooser_(chooser) {}
  std::string name() const override { return chooser_.name(); }
  RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const override { return chooser_.plan(n_layers, n_tokens); }
  Preview preview(int32_t n_layers) const override { return chooser_.preview(n_layers); }
  void score(const PreviewedLayer& seen, const Tensor& scores) const override { chooser_.score(seen, scores); }
  std::vector<double> rank(const PreviewScores& seen) const override {
    if (!seen.chosen.empty()) return chooser_.rank(seen);
    std::vector<double> scores(kImage, 0);
    for (int i = 10; i < kImage; ++i) scores[static_cast<size_t>(i)] = kImage - i;
    return scores;
  }

 private:
  Summed chooser_;
};

struct Looked {
  std::vector<double> scores;   // of the last preview
  std::vector<int32_t> depths;  // that it has chosen
};

// What `chooser` makes of the image's tokens after other tokens than those it was recorded after.
Looked look(Engine& engine, const ReuseChooserPtr& chooser, const std::shared_ptr<const ImageKv>& image,
            int32_t chunk) {
  LoadedImageSource images(engine.backend(), engine.model().ropes());
  const auto s = make_sequence(engine, image_prompt(kTextBefore, 5));
  images.add(*s, {{image_at(kTextBefore)}}, image, RecomputePlan::uniform(kPreviewLayers, 0));
  PreviewHooks preview(engine.backend(), images, chooser, *s, kPreviewLayers);
  while (true) {
    images.supply(*s);
    while (!preview.complete(*s)) {
      std::vector<TokenRun> runs;
      s->next_runs(chunk, runs);
      StepItem item{.sequence = s.get()};
      item.preview = preview.cut(runs);
      item.runs = runs;
      item.hooks = item.preview ? static_cast<LayerHooks*>(&preview) : &images;
      engine.stepper().step({&item, 1});
      if (item.preview) preview.finish_step();
    }
    const std::vector<double> scores = preview.scores();
    const std::vector<int32_t> depths = preview.choose();
    if (!preview.looks_again()) return {scores, depths};
    s->take_back_supplied();
    images.set_depths(depths);
    images.keep_recomputed();
  }
}

std::vector<double> scores(Engine& engine, const ReuseChooserPtr& chooser, const std::shared_ptr<const ImageKv>& image,
                           int32_t chunk) {
  return look(engine, chooser, image, chunk).scores;
}

// In one layer, of every row the attention of each head to the image's tokens; the keys may be replaced by others.
class Attention final : public LayerHooks {
 public:
  Attention(Engine& engine, int32_t layer) : engine_(engine), layer_(layer) {}
  // [row][head][slot]: scale q k over all slots the row sees, the image's keys those of `image` if there is one.
  std::vector<std::vector<std::vector<double>>> matrix;
  std::vector<int32_t> tokens;  // of the rows
  const ImageKv* image = nullptr;

  bool after_attention(int layer, const Observed& o, std::vector<int32_t>&) override {
    if (layer != layer_) return false;
    const KvView& view = o.views.back();
    const int64_t n = view.n_slots[0];
    std::vector<int32_t> slots(static_cast<size_t>(n));
    std::iota(slots.begin(), slots.end(), 0);
    tokens.assign(o.tokens.begin(), o.tokens.end());
    matrix.assign(o.tokens.size(), std::vector<std::vector<double>>(kHeads));
    for (int32_t h = 0; h < kHeads; ++h) {
      std::vector<float> k(static_cast<size_t>(n * kHeadDim)), v(k.size());
      engine_.backend().kv_read(view, h / (kHeads / kKvHeads), slots, Tensor(k.data(), DType::kF32, {n, kHeadDim}),
                                Tensor(v.data(), DType::kF32, {n, kHeadDim}));
      if (image != nullptr) exchange(h / (kHeads / kKvHeads), k);
      for (size_t i = 0; i < o.tokens.size(); ++i) {
        std::vector<double>& row = matrix[i][static_cast<size_t>(h)];
        for (int32_t j = 0; j <= o.tokens[i]; ++j) {
          double dot = 0;
          for (int32_t c = 0; c < kHeadDim; ++c) {
            dot += double{o.q.row<float>(static_cast<int64_t>(i))[h * kHeadDim + c]} *
                   double{k[static_cast<size_t>(j * kHeadDim + c)]};
          }
          row.push_back(std::exp(dot * double{o.scale}));
        }
        const double sum = std::accumulate(row.begin(), row.end(), 0.0);
        for (double& a : row) a /= sum;
      }
    }
    return false;
  }

 private:
  // The image's keys are the recorded ones, rotated to their positions.
  void exchange(int32_t head, std::vector<float>& k) const {
    const auto frequencies = engine_.model().ropes().of(0).frequencies();
    constexpr int32_t kHalf = kHeadDim / 2;
    const ImageRows rows(engine_, *image, layer_);
    for (int32_t i = 0; i < kImage; ++i) {
      const float* from = rows.k.data() + (i * kKvHeads + head) * kHeadDim;
      float* to = k.data() + (kTextBefore + i) * kHeadDim;
      for (int32_t c = 0; c < kHalf; ++c) {
        const double angle = double{frequencies[static_cast<size_t>(c)]} * (kTextBefore + i);
        const double x = from[c], y = from[c + kHalf];
        to[c] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
        to[c + kHalf] = static_cast<float>(y * std::cos(angle) + x * std::sin(angle));
      }
    }
  }
  Engine& engine_;
  int32_t layer_;
};

std::unique_ptr<Engine> preview_engine(std::string_view backend) { return make_engine(kPreviewLayers, backend); }

void expect_scores(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  const double largest = *std::ranges::max_element(expected);
  EXPECT_GT(largest, 0);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * largest) << i;
}

TEST(PreviewHooks, CacheblendComparesTheValuesOfLayer1) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = preview_engine(backend);
    const auto old = record_image(*engine, image_prompt(20, 1), 20, 512);
    const auto right = record_image(*engine, image_prompt(kTextBefore, 5), kTextBefore, 512);
    const ImageRows old_rows(*engine, *old, 1), right_rows(*engine, *right, 1);
    std::vector<double> expected;
    for (size_t at = 0; at < old_rows.v.size();) {
      double sum = 0;
      for (int32_t c = 0; c < kKvHeads * kHeadDim; ++c, ++at) {
        sum += std::pow(double{old_rows.v[at]} - double{right_rows.v[at]}, 2);
      }
      expected.push_back(sum);
    }
    for (const int32_t chunk : {512, 17}) {
      expect_scores(scores(*engine, parse_reuse_chooser("cacheblend"), old, chunk), expected);
    }
  }
}

TEST(PreviewHooks, KvshareComparesTheAttentionOfTextInLayer1) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = preview_engine(backend);
    const auto old = record_image(*engine, image_prompt(20, 1), 20, 512);
    Attention fresh(*engine, 1), reused(*engine, 1);
    reused.image = old.get();
    for (Attention* attention : {&fresh, &reused}) {
      const auto s = make_sequence(*engine, image_prompt(kTextBefore, 5));
      compute(*engine, *s, 512, attention);
    }
    std::vector<double> expected(kImage, 0);
    for (size_t row = kTextBefore + kImage; row + 1 < fresh.matrix.size(); ++row) {  // the last token is not looked at
      for (size_t h = 0; h < kHeads; ++h) {
        for (size_t j = 0; j < kImage; ++j) {
          expected[j] += std::abs(fresh.matrix[row][h][kTextBefore + j] - reused.matrix[row][h][kTextBefore + j]);
        }
      }
    }
    for (const int32_t chunk : {512, 17}) {
      expect_scores(scores(*engine, parse_reuse_chooser("kvshare"), old, chunk), expected);
    }
  }
}

TEST(PreviewHooks, AskedSumsTheQuestionsMaximumAttentionInDeepLayers) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = preview_engine(backend);
    const auto old = record_image(*engine, image_prompt(20, 1), 20, 512);
    std::vector<double> expected(kImage, 0);
    for (int32_t layer = kPreviewLayers / 3; layer < kPreviewLayers; ++layer) {
      Attention attention(*engine, layer);
      LoadedImageSource images(engine->backend(), engine->model().ropes());
      const auto s = make_sequence(*engine, image_prompt(kTextBefore, 5));
      images.add(*s, {{image_at(kTextBefore)}}, old, RecomputePlan::uniform(kPreviewLayers, 0));
      images.supply(*s);
      compute(*engine, *s, 512, &attention);
      for (size_t h = 0; h < kHeads; ++h) {
        for (size_t j = 0; j < kImage; ++j) {
          double most = 0;
          for (size_t row = 0; row < attention.tokens.size(); ++row) {
            if (attention.tokens[row] > kTextBefore) most = std::max(most, attention.matrix[row][h][kTextBefore + j]);
          }
          expected[j] += most;
        }
      }
    }
    for (const int32_t chunk : {512, 17}) {
      expect_scores(scores(*engine, std::make_shared<Summed>("asked"), old, chunk), expected);
    }
  }
}

// The tokens that the first preview chose are computed in the second one, and the text attends to them. The second
// chooses others: as many as half of the plan.
TEST(PreviewHooks, ASecondLookAttendsToWhatTheFirstHasChosen) {
  constexpr size_t kChosen = 10, kEnd = 14;  // tokens of the image: half of 16 %
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = preview_engine(backend);
    const auto old = record_image(*engine, image_prompt(20, 1), 20, 512);
    std::vector<int32_t> before(kImage, 0);
    std::fill(before.begin() + kChosen, before.begin() + kEnd, kPreviewLayers);
    std::vector<double> expected(kImage, 0);
    for (int32_t layer = kPreviewLayers / 3; layer < kPreviewLayers; ++layer) {
      Attention attention(*engine, layer);
      LoadedImageSource images(engine->backend(), engine->model().ropes());
      const auto s = make_sequence(*engine, image_prompt(kTextBefore, 5));
      images.add(*s, {{image_at(kTextBefore)}}, old, RecomputePlan::uniform(kPreviewLayers, 0));
      images.set_depths(before);
      images.supply(*s);
      compute(*engine, *s, 512, &attention);  // no row ends before the last layer
      for (size_t h = 0; h < kHeads; ++h) {
        for (size_t j = 0; j < kImage; ++j) {
          double most = 0;
          for (size_t row = 0; row < attention.tokens.size(); ++row) {
            if (attention.tokens[row] < kTextBefore + kImage) continue;
            most = std::max(most, attention.matrix[row][h][kTextBefore + j]);
          }
          expected[j] += most;
        }
      }
    }
    std::vector<int32_t> order(kImage);
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](int32_t i) { return before[static_cast<size_t>(i)] > 0; });
    std::ranges::stable_sort(order, std::greater(), [&](int32_t i) { return expected[static_cast<size_t>(i)]; });
    std::vector<int32_t> depths(kImage, 0);
    for (size_t i = 0; i < kEnd - kChosen; ++i) depths[static_cast<size_t>(order[i])] = kPreviewLayers;
    for (const int32_t chunk : {512, 17}) {
      const Looked second = look(*engine, std::make_shared<TenthFirst>("asked:r=0.16,to=1,looks=2"), old, chunk);
      expect_scores(second.scores, expected);
      EXPECT_EQ(second.depths, depths);
    }
  }
}

}  // namespace
}  // namespace vlcache
