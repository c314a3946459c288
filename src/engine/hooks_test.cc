// The seams of the forward pass, proved by policies of each kind on a random model: dropping rows, choosing pages,
// streaming, capture.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/json.h"
#include "engine/capture_hooks.h"
#include "engine/engine.h"

namespace vlcache {
namespace {

constexpr int32_t kHeads = 4, kKvHeads = 2, kHeadDim = 32, kVocab = 61;

std::unique_ptr<Engine> make_engine(int32_t n_layers, std::string_view backend = "auto") {
  Json config = parse_json(
      R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096, "torch_dtype": "float32"})",
      "test");
  config["num_hidden_layers"] = n_layers;
  EngineOptions options;
  options.backend = backend;
  options.kv_memory_bytes = 64 << 20;
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

std::vector<int32_t> random_tokens(int32_t n) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % kVocab);
  return tokens;
}

Sequence make_sequence(Engine& engine, std::vector<int32_t> tokens, std::string_view mode = "full") {
  return engine.new_sequence(engine.prepare_tokens(std::move(tokens)), parse_cache_mode(mode));
}

// Computes all pending tokens, `chunk` at a time; the logits of the last.
std::vector<float> run(Engine& engine, Sequence& sequence, int32_t chunk, LayerHooks* hooks = nullptr) {
  std::vector<float> last;
  while (sequence.n_pending() > 0) {
    const StepItem item{&sequence, std::min(chunk, sequence.n_pending())};
    const Tensor logits = engine.stepper().step({&item, 1}, hooks)[0];
    if (logits.rows() > 0) last.assign(logits.as<float>(), logits.as<float>() + logits.numel());
    if (sequence.mode().recompute) break;
  }
  return last;
}

void expect_close(const std::vector<float>& a, const std::vector<float>& b, float tolerance = 1e-4f) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0, error = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i]));
    error = std::max(error, std::abs(a[i] - b[i]));
  }
  EXPECT_LE(error, tolerance * largest);
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
  float error = 0;
  for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::abs(a[i] - b[i]));
  return error;
}

// Which slots survive: those of pages 0 and 3 of four.
bool in_dropped_pages(int32_t position) { return position >= 64 && position < 192; }

// FastV's shape: rows of the middle pages go no further than layer 1.
class DropRows final : public LayerHooks {
 public:
  std::vector<int> layers_seen;
  void rows_after(int layer, const Observed& o, std::vector<int32_t>& keep) override {
    layers_seen.push_back(layer);
    if (layer != 1) return;
    for (size_t i = 0; i < o.positions.size(); ++i) {
      if (!in_dropped_pages(o.positions[i])) keep.push_back(static_cast<int32_t>(i));
    }
  }
};

// Quest's shape: from layer 2 on, the last rows attend to pages 0 and 3 only.
class ChoosePages final : public LayerHooks {
 public:
  std::vector<int> layers_seen;
  KvView view(int layer, const SeqRows&, const Tensor&, const Tensor&, const KvView& full) override {
    layers_seen.push_back(layer);
    if (layer < 2 || full.n_slots[0] <= 192) return full;
    pages_.clear();
    n_slots_.clear();
    for (int32_t h = 0; h < full.n_kv_heads; ++h) {
      for (int64_t page : {0, 3}) pages_.push_back(full.pages[h * full.page_stride + page]);
      n_slots_.push_back(full.n_slots[h] - 128);
    }
    KvView chosen = full;
    chosen.pages = pages_.data();
    chosen.page_stride = 2;
    chosen.n_slots = n_slots_.data();
    return chosen;
  }

 private:
  std::vector<int32_t> pages_, n_slots_;
};

TEST(LayerHooks, DroppingRowsAndChoosingPagesAgree) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(4, backend);
    const std::vector<int32_t> tokens = random_tokens(205);

    DropRows drop;
    Sequence dropped = make_sequence(*engine, tokens);
    const std::vector<float> a = run(*engine, dropped, 192, &drop);
    EXPECT_EQ(drop.layers_seen, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
    EXPECT_EQ(dropped.cache().n_slots(1, 0), 205);
    EXPECT_EQ(dropped.cache().n_slots(2, 0), 205 - 128);
    EXPECT_EQ(dropped.cache().slot_tokens(3, 1)[64], 192);  // slots follow on, tokens keep their positions

    ChoosePages choose;
    Sequence chosen = make_sequence(*engine, tokens);
    const std::vector<float> b = run(*engine, chosen, 192, &choose);
    EXPECT_EQ(choose.layers_seen, drop.layers_seen);
    expect_close(a, b);

    Sequence whole = make_sequence(*engine, tokens);
    EXPECT_GT(distance(a, run(*engine, whole, 192)), 1e-3f) << "the policies changed nothing";
  }
}

TEST(LayerHooks, DroppingInOneChunkOrSeveralIsTheSame) {
  const std::unique_ptr<Engine> engine = make_engine(4);
  const std::vector<int32_t> tokens = random_tokens(205);
  DropRows drop;
  Sequence one = make_sequence(*engine, tokens), many = make_sequence(*engine, tokens);
  expect_close(run(*engine, one, 512, &drop), run(*engine, many, 130, &drop));
}

// With one layer, K and V depend on the token alone: streaming then equals full attention over the kept tokens,
// renumbered.
TEST(Streaming, EqualsFullAttentionOverTheKeptTokensRenumbered) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(1, backend);
    const std::vector<int32_t> tokens = random_tokens(150);
    for (const auto& [sinks, window] : {std::pair{4, 20}, std::pair{0, 33}, std::pair{70, 10}, std::pair{3, 1}}) {
      const std::string mode = "streaming:sinks=" + std::to_string(sinks) + ",window=" + std::to_string(window);
      std::vector<int32_t> kept(tokens.begin(), tokens.begin() + sinks);
      kept.insert(kept.end(), tokens.end() - window, tokens.end());
      Sequence renumbered = make_sequence(*engine, kept);
      const std::vector<float> expected = run(*engine, renumbered, 512);
      for (int32_t chunk : {512, 64, 7, 1}) {
        Sequence streaming = make_sequence(*engine, tokens, mode);
        expect_close(run(*engine, streaming, chunk), expected);
        EXPECT_EQ(streaming.cache().n_slots(0, 1), sinks + window);
      }
    }
  }
}

TEST(Streaming, IsFullAttentionWhileEverythingFits) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const std::vector<int32_t> tokens = random_tokens(90);
  Sequence streaming = make_sequence(*engine, tokens, "streaming:sinks=4,window=86");
  Sequence full = make_sequence(*engine, tokens);
  expect_close(run(*engine, streaming, 40), run(*engine, full, 40));
}

TEST(Streaming, ChunksDoNotMatterInDeepModels) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const std::vector<int32_t> tokens = random_tokens(150);
  Sequence a = make_sequence(*engine, tokens, "streaming:sinks=4,window=30");
  Sequence b = make_sequence(*engine, tokens, "streaming:sinks=4,window=30");
  Sequence full = make_sequence(*engine, tokens);
  const std::vector<float> x = run(*engine, a, 150);
  expect_close(x, run(*engine, b, 1));
  EXPECT_GT(distance(x, run(*engine, full, 150)), 1e-3f);
}

TEST(Modes, RecomputingGivesTheSameLogits) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  Sequence none = make_sequence(*engine, random_tokens(40), "none");
  Sequence full = make_sequence(*engine, random_tokens(40));
  for (int i = 0; i < 3; ++i) {
    expect_close(run(*engine, none, 512), run(*engine, full, 512));
    EXPECT_EQ(none.cache().bytes(), 0);
    none.add_token(i);
    full.add_token(i);
    EXPECT_EQ(none.n_pending(), 41 + i);
    EXPECT_EQ(full.n_pending(), 1);
  }
}

// Attention of query row i (rotated, [H, d]) over all slots it sees, from the cache itself, in double.
std::vector<double> explicit_attention(Engine& engine, const KvView& view, const Tensor& q, int64_t row, int32_t head,
                                       int32_t n_seen) {
  std::vector<int32_t> slots(static_cast<size_t>(n_seen));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<float> k(static_cast<size_t>(n_seen * kHeadDim));
  engine.backend().kv_read(view, head / (kHeads / kKvHeads), slots, Tensor(k.data(), DType::kF32, {n_seen, kHeadDim}),
                           Tensor());
  std::vector<double> a(static_cast<size_t>(n_seen));
  double sum = 0;
  for (int32_t j = 0; j < n_seen; ++j) {
    double dot = 0;
    for (int32_t c = 0; c < kHeadDim; ++c)
      dot += double{q.row<float>(row)[head * kHeadDim + c]} * k[static_cast<size_t>(j * kHeadDim + c)];
    sum += a[static_cast<size_t>(j)] = std::exp(dot / std::sqrt(double{kHeadDim}));
  }
  for (double& x : a) x /= sum;
  return a;
}

TEST(Capture, SumsAndCountsAreThoseOfTheExplicitMatrix) {
  for (std::string_view backend : backend_names()) {
    for (int32_t chunk : {512, 50}) {
      SCOPED_TRACE(std::string(backend) + ", chunk " + std::to_string(chunk));
      const std::unique_ptr<Engine> engine = make_engine(2, backend);
      const int32_t n = 130, w = 70;
      Sequence sequence = make_sequence(*engine, random_tokens(n));
      Capture everything{.request = {.query_window = n}, .layers = {}};
      Capture capture{.request = {.query_window = w, .column_sums = true, .threshold_counts = true, .threshold = 0.2f},
                      .layers = {}};
      const AttentionArgs args{.scale = 1.0f / std::sqrt(float{kHeadDim})};
      CaptureHooks all(engine->backend(), 2, n, args, everything);
      run(*engine, sequence, chunk, &all);
      Sequence again = make_sequence(*engine, random_tokens(n));
      CaptureHooks hooks(engine->backend(), 2, n, args, capture);
      run(*engine, again, chunk, &hooks);

      for (int32_t layer = 0; layer < 2; ++layer) {
        const LayerCapture& c = capture.layers[static_cast<size_t>(layer)];
        const Tensor& q = everything.layers[static_cast<size_t>(layer)].window_queries;
        ASSERT_EQ(c.window_queries.describe(), "f32[70, 4, 32]");
        EXPECT_EQ(c.window_queries.row<float>(3)[5], q.row<float>(n - w + 3)[5]);
        for (int32_t h = 0; h < kHeads; ++h) {
          std::vector<double> sums(n), below(n), seen(n);
          for (int32_t i = 0; i < n; ++i) {
            const std::vector<double> a = explicit_attention(*engine, again.cache().view(layer), q, i, h, i + 1);
            const double largest = *std::max_element(a.begin(), a.end());
            for (int32_t j = 0; j <= i; ++j) {
              sums[static_cast<size_t>(j)] += a[static_cast<size_t>(j)];
              if (i < n - w) continue;
              below[static_cast<size_t>(j)] += a[static_cast<size_t>(j)] < 0.2 * largest;
              seen[static_cast<size_t>(j)] += 1;
            }
          }
          double below_error = 0;
          for (int32_t j = 0; j < n; ++j) {
            EXPECT_NEAR(c.column_sums.row<float>(h)[j], sums[static_cast<size_t>(j)], 1e-3);
            EXPECT_EQ(c.seen_counts.row<float>(h)[j], seen[static_cast<size_t>(j)]);
            below_error += std::abs(c.below_counts.row<float>(h)[j] - below[static_cast<size_t>(j)]);
          }
          EXPECT_LE(below_error, 2) << "entries that lie on the threshold may fall either way, hardly more than two";
        }
      }
    }
  }
}

}  // namespace
}  // namespace vlcache
