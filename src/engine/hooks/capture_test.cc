// Captured statistics against the explicit attention matrix: with any chunks, after a kept prefix, with loaded gaps, in
// layers with a sliding window.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine_testing.h"
#include "engine/hooks/capture_hooks.h"

namespace vlcache {
namespace {

constexpr int32_t kPrompt = 100;

// Keeps every query of a prompt.
class KeepQueries final : public LayerHooks {
 public:
  std::vector<std::vector<std::vector<float>>> q{2, std::vector<std::vector<float>>(kPrompt)};  // [layer][token][H d]
  bool after_attention(int layer, const Observed& o, std::vector<int32_t>&) override {
    for (size_t i = 0; i < o.tokens.size(); ++i) {
      const float* row = o.q.row<float>(static_cast<int64_t>(i));
      q[static_cast<size_t>(layer)][static_cast<size_t>(o.tokens[i])].assign(row, row + kHeads * kHeadDim);
    }
    return false;
  }
};

// Attention of one query head [n] over slots 0 .. token, in double, from the cache itself, with the layer's window and
// sink logits.
std::vector<double> attention_of(Engine& engine, const KvView& view, const std::vector<float>& q, int32_t layer,
                                 int32_t head, int32_t token) {
  const TextConfig& text = engine.model().config().text;
  const int32_t window = text.layer(layer).window;
  const double scale = text.attention_scale > 0 ? double{text.attention_scale} : 1 / std::sqrt(double{kHeadDim});
  const std::vector<float>& sinks = engine.model().weights().text.layers[static_cast<size_t>(layer)].attn_sinks;
  std::vector<int32_t> slots(static_cast<size_t>(token + 1));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<float> k(slots.size() * kHeadDim);
  engine.backend().kv_read(view, head / (kHeads / kKvHeads), slots,
                           Tensor(k.data(), DType::kF32, {token + 1, kHeadDim}), Tensor());
  std::vector<double> a(kPrompt, 0.0);
  double sum = sinks.empty() ? 0 : std::exp(double{sinks[static_cast<size_t>(head)]});
  for (int32_t j = 0; j <= token; ++j) {
    if (window > 0 && j <= token - window) continue;
    double dot = 0;
    for (int32_t c = 0; c < kHeadDim; ++c) {
      dot += double{q[static_cast<size_t>(head * kHeadDim + c)]} * k[static_cast<size_t>(j * kHeadDim + c)];
    }
    sum += a[static_cast<size_t>(j)] = std::exp(dot * scale);
  }
  for (double& x : a) x /= sum;
  return a;
}

struct Expected {
  std::vector<double> all_sums, band_sums, window_sums, below, seen;  // [Hk, n], mean over the group
  std::vector<double> all_max, window_max;                            // [Hk, n], maximum over the group
};

// What the rows `first`.. of the prompt attend to, the last w of them apart.
Expected explicit_sums(Engine& engine, Sequence& s, const KeepQueries& queries, int32_t layer,
                       const std::vector<bool>& computed, const CaptureRequest& request) {
  const int32_t window = engine.model().config().text.layer(layer).window;
  const size_t n = kKvHeads * kPrompt;
  Expected e{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n), std::vector<double>(n),
             std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  for (int32_t h = 0; h < kHeads; ++h) {
    const double share = double{kKvHeads} / kHeads;
    for (int32_t t = 0; t < kPrompt; ++t) {
      if (!computed[static_cast<size_t>(t)]) continue;
      const std::vector<double> a = attention_of(
          engine, s.cache().view(layer), queries.q[static_cast<size_t>(layer)][static_cast<size_t>(t)], layer, h, t);
      const double largest = *std::max_element(a.begin(), a.end());
      const bool in_window = t >= kPrompt - request.window;
      const double weight = in_window && !request.window_weights.empty()
                                ? request.window_weights[static_cast<size_t>(t - (kPrompt - request.window))]
                                : 1.0;
      for (int32_t j = 0; j <= t; ++j) {
        if (window > 0 && j <= t - window) continue;
        const auto at = static_cast<size_t>(h / (kHeads / kKvHeads) * kPrompt + j);
        const double x = a[static_cast<size_t>(j)];
        e.all_sums[at] += share * x;
        if (j > t - request.band) e.band_sums[at] += share * x;
        e.all_max[at] = std::max(e.all_max[at], x);
        if (!in_window) continue;
        e.window_sums[at] += share * weight * x;
        e.window_max[at] = std::max(e.window_max[at], x);
        e.below[at] += share * (x < request.threshold * largest);
        e.seen[at] += share;
      }
    }
  }
  return e;
}

void expect_near(const Tensor& found, const std::vector<double>& expected, double tolerance, const char* what) {
  ASSERT_FALSE(found.empty()) << what;
  double worst = 0;
  for (int32_t h = 0; h < kKvHeads; ++h) {
    for (int32_t j = 0; j < kPrompt; ++j) {
      worst = std::max(worst, std::abs(found.row<float>(h)[j] - expected[static_cast<size_t>(h * kPrompt + j)]));
    }
  }
  EXPECT_LE(worst, tolerance) << what;
}

// How a prompt is computed: in chunks, after a prefix that was computed before, with tokens supplied by a source.
struct Way {
  int32_t chunk;
  int32_t n_kept;
  std::vector<TokenRun> loaded;
};

void check(Engine& engine, const Way& way, CaptureRequest request) {
  const std::vector<int32_t> tokens = random_tokens(kPrompt);
  const auto whole = make_sequence(engine, tokens);
  KeepQueries queries;
  compute(engine, *whole, 512, &queries);

  const auto s = make_sequence(engine, std::vector<int32_t>(tokens.begin(), tokens.begin() + std::max(1, way.n_kept)));
  if (way.n_kept > 0) compute(engine, *s, 512);
  ASSERT_EQ(s->continue_with(engine.prepare_tokens(tokens)), way.n_kept);
  std::vector<bool> computed(kPrompt, true);
  std::fill_n(computed.begin(), way.n_kept, false);
  CopySource source(engine, *whole, 1.0f);
  if (!way.loaded.empty()) s->supply(way.loaded, source);
  for (const TokenRun& run : way.loaded) std::fill(computed.begin() + run.begin, computed.begin() + run.end, false);

  Capture capture{.request = request, .layers = {}};
  CaptureHooks hooks(engine.backend(), 2, kPrompt, capture);
  compute(engine, *s, way.chunk, &hooks);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const LayerCapture& c = capture.layers[static_cast<size_t>(layer)];
    const Expected e = explicit_sums(engine, *s, queries, layer, computed, request);
    if (request.all_sums) expect_near(c.all_sums, e.all_sums, 1e-4, "all sums");
    if (request.band > 0) expect_near(c.band_sums, e.band_sums, 1e-4, "sums of the band");
    if (request.all_max) expect_near(c.all_max, e.all_max, 1e-5, "all maxima");
    if (request.window_sums) expect_near(c.window_sums, e.window_sums, 1e-4, "window sums");
    if (request.window_max) expect_near(c.window_max, e.window_max, 1e-5, "window maxima");
    if (request.window_counts) {
      expect_near(c.seen_counts, e.seen, 1e-6, "seen");
      expect_near(c.below_counts, e.below, 1.01, "below");  // a value on the threshold may fall either way
    }
    if (!request.window_queries) continue;
    int64_t row = 0;
    for (int32_t t = kPrompt - request.window; t < kPrompt; ++t) {
      if (!computed[static_cast<size_t>(t)]) continue;
      const std::vector<float>& q = queries.q[static_cast<size_t>(layer)][static_cast<size_t>(t)];
      expect_close({c.window_queries.row<float>(row), c.window_queries.row<float>(row) + q.size()}, q);
      ++row;
    }
    EXPECT_EQ(c.window_queries.rows(), row);
  }
}

TEST(Capture, EqualsTheExplicitMatrixForAnyChunk) {
  CaptureRequest request{.all_sums = true,
                         .band = 30,
                         .window = 50,
                         .window_queries = true,
                         .window_sums = true,
                         .window_counts = true,
                         .threshold = 0.2f};
  for (int32_t i = 0; i < request.window; ++i) request.window_weights.push_back(0.5f + 0.01f * static_cast<float>(i));
  for (std::string_view backend : backend_names()) {
    for (const char* model_type : {"llama", "mistral", "granite_swa"}) {  // the last has sink logits
      const std::unique_ptr<Engine> engine = make_engine(2, backend, 64 << 20, model_type);
      for (const Way& way : {Way{512, 0, {}}, Way{50, 0, {}}, Way{1, 0, {}}, Way{512, 47, {}}, Way{20, 47, {}},
                             Way{512, 0, {{20, 70}, {80, 81}}}, Way{7, 10, {{20, 70}, {80, 99}}}}) {
        SCOPED_TRACE(std::string(backend) + " " + model_type + ", chunk " + std::to_string(way.chunk) + ", kept " +
                     std::to_string(way.n_kept) + ", " + std::to_string(way.loaded.size()) + " gaps");
        check(*engine, way, request);
        CaptureRequest maxima{.reduce = CaptureRequest::Reduce::kMax, .window = 50, .window_max = true};
        if (way.n_kept == 0 && way.chunk > 1) maxima.all_max = true;
        check(*engine, way, maxima);
      }
    }
  }
}

// A policy that needs rows that are not computed fails its own request, by name.
TEST(Capture, AttentionOfUncomputedTokensIsAnError) {
  class WantsAll final : public Policy {
   public:
    std::string name() const override { return "wants_all"; }
    std::vector<CaptureRequest> needs(const PromptShape&) const override { return {{.all_sums = true}}; }
  };
  const std::unique_ptr<Engine> engine = make_engine(2);
  const std::vector<int32_t> tokens = random_tokens(30);
  const auto s =
      engine->new_sequence(engine->prepare_tokens({tokens.begin(), tokens.begin() + 10}), std::make_shared<WantsAll>());
  compute(*engine, *s, 512);  // a whole prompt is fine
  ASSERT_EQ(s->continue_with(engine->prepare_tokens(tokens)), 10);
  try {
    compute(*engine, *s, 512);
    ADD_FAILURE() << "did not fail";
  } catch (const StepFailed& e) {
    EXPECT_EQ(e.item(), 0);
    EXPECT_EQ(std::string(e.what()),
              "KV policy wants_all needs the attention of every prompt token; 10 of 30 come from a cache and are not "
              "computed");
  }
}

}  // namespace
}  // namespace vlcache
