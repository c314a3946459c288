// The probe of heads against the explicit attention matrix of a small random model.
#include "analysis/head_probe.h"

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/engine_testing.h"

namespace vlcache {
namespace {

// Keeps all queries, [layer][token][H d].
class KeepQueries final : public LayerHooks {
 public:
  explicit KeepQueries(size_t n) : q(2, std::vector<std::vector<float>>(n)) {}
  std::vector<std::vector<std::vector<float>>> q;
  bool after_attention(int layer, const Observed& o, std::vector<int32_t>&) override {
    for (size_t i = 0; i < o.tokens.size(); ++i) {
      const float* row = o.q.row<float>(static_cast<int64_t>(i));
      q[static_cast<size_t>(layer)][static_cast<size_t>(o.tokens[i])].assign(row, row + kHeads * kHeadDim);
    }
    return false;
  }
};

TEST(HeadProbe, IsTheMeanOfTwoDiagonals) {
  constexpr int32_t kPeriod = 20, kTokens = 4 * kPeriod;
  for (std::string_view backend : backend_names()) {
    for (const char* model_type : {"llama", "mistral"}) {
      const bool windowed = model_type == std::string_view("mistral");  // of 40 tokens
      const std::unique_ptr<Engine> engine = make_engine(2, backend, 64 << 20, model_type);
      int32_t n_done = 0;
      const HeadScores scores =
          probe_heads(*engine, {.period = kPeriod, .seed = 3, .progress = [&](int32_t n, int32_t) { n_done = n; }});
      EXPECT_EQ(n_done, kTokens);
      // The same tokens again, from the definition of the probe.
      std::mt19937_64 random(3);
      std::vector<int32_t> tokens(kPeriod);
      for (int32_t& t : tokens) t = static_cast<int32_t>(random() % kVocab);
      for (int32_t i = kPeriod; i < kTokens; ++i) tokens.push_back(tokens[static_cast<size_t>(i - kPeriod)]);
      const auto s = make_sequence(*engine, tokens);
      KeepQueries queries(kTokens);
      compute(*engine, *s, 512, &queries);
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (int32_t head = 0; head < kKvHeads; ++head) {
          std::vector<float> k(static_cast<size_t>(kTokens) * kHeadDim);
          s->slots().read(layer, head, Tensor(k.data(), DType::kF32, {kTokens, kHeadDim}), Tensor());
          double best_echo = 0, best_induction = 0;
          for (int32_t h = 2 * head; h < 2 * head + 2; ++h) {
            double echo = 0, induction = 0;
            for (int32_t t = kTokens - kPeriod; t < kTokens; ++t) {
              const float* q = queries.q[static_cast<size_t>(layer)][static_cast<size_t>(t)].data() + h * kHeadDim;
              std::vector<double> a(kTokens);
              double sum = 0;
              for (int32_t j = windowed ? t - 39 : 0; j <= t; ++j) {
                double dot = std::inner_product(q, q + kHeadDim, k.data() + j * kHeadDim, 0.0);
                sum += a[static_cast<size_t>(j)] = std::exp(dot / std::sqrt(double{kHeadDim}));
              }
              echo += a[static_cast<size_t>(t - kPeriod)] / sum / kPeriod;
              induction += a[static_cast<size_t>(t - kPeriod + 1)] / sum / kPeriod;
            }
            best_echo = std::max(best_echo, echo);
            best_induction = std::max(best_induction, induction);
          }
          EXPECT_GT(best_echo, 1e-3);
          const auto l = static_cast<size_t>(layer), i = static_cast<size_t>(head);
          EXPECT_NEAR(scores.echo[l][i], best_echo, 1e-5);
          EXPECT_NEAR(scores.induction[l][i], best_induction, 1e-5);
        }
      }
    }
  }
}

TEST(HeadProbe, FindsNothingBeyondASlidingWindow) {
  const std::unique_ptr<Engine> engine = make_engine(2, "auto", 64 << 20, "mistral");
  const HeadScores scores = probe_heads(*engine, {.period = 50});
  for (const HeadMatrix* m : {&scores.echo, &scores.induction}) {
    for (const auto& row : *m) {
      for (const float x : row) EXPECT_EQ(x, 0);
    }
  }
}

TEST(HeadProbe, NeedsContext) {
  const std::unique_ptr<Engine> engine = make_engine(2, "auto", 64 << 20, "llama", 64);
  EXPECT_EQ(probe_heads(*engine, {}).echo.size(), 2u);  // as many as fit: 16 tokens
  EXPECT_THROW(probe_heads(*engine, {.period = 17}), Error);
  EXPECT_THROW(probe_heads(*engine, {.period = 1}), Error);
  bool asked = false;
  const HeadScores none = probe_heads(*engine, {.cancelled = [&] { return asked = true; }});
  EXPECT_TRUE(asked);
  EXPECT_TRUE(none.echo.empty());
}

}  // namespace
}  // namespace vlcache
