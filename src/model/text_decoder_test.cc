// The decoder's invariants: chunks, batches, dropped rows, chosen pages and streaming, on random weights.
#include "model/text_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "model/contiguous_kv.h"
#include "model/model.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

ModelConfig tiny(const char* model_type = "llama", int n_layers = 3) {
  Json json = {{"model_type", model_type},
               {"vocab_size", 97},
               {"hidden_size", 64},
               {"intermediate_size", 80},
               {"num_hidden_layers", n_layers},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"head_dim", 32},
               {"max_position_embeddings", 512}};
  return parse_model_config(json, "test");
}

struct Sequence {
  std::vector<int32_t> tokens;
  int32_t first_position = 0;
};

class TextDecoderTest : public testing::Test {
 protected:
  explicit TextDecoderTest() : backend_(make_backend("ref", DType::kF32)) { make(tiny()); }

  void make(const ModelConfig& config) { model_ = Model::random(config, *backend_, 7); }
  ContiguousKv cache(int32_t n_seqs = 1) const {
    return ContiguousKv(model_->config().text, *backend_, KvCodec::kF32, 200, n_seqs);
  }
  static std::vector<int32_t> tokens(int n, int seed = 1) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = (i * 31 + seed * 17 + i * i % 13) % 97;
    return ids;
  }
  static std::vector<int32_t> count_up(size_t n, int32_t from = 0) {
    std::vector<int32_t> v(n);
    std::iota(v.begin(), v.end(), from);
    return v;
  }

  // Logits of `logit_rows` of one step over several sequences.
  std::vector<float> step(KvAccess& kv, const std::vector<Sequence>& batch, std::vector<int32_t> logit_rows,
                          LayerHooks* hooks = nullptr, AttentionPattern pattern = {}) {
    std::vector<int32_t> ids, positions;
    std::vector<RowRun> runs;
    for (const Sequence& s : batch) {
      const auto n = static_cast<int32_t>(s.tokens.size());
      runs.push_back({static_cast<int32_t>(runs.size()), static_cast<int32_t>(ids.size()), n});
      ids.insert(ids.end(), s.tokens.begin(), s.tokens.end());
      for (int32_t i = 0; i < n; ++i) positions.push_back(s.first_position + i);
    }
    const auto n = static_cast<int64_t>(ids.size());
    std::vector<float> x(static_cast<size_t>(n * 64)), logits(logit_rows.size() * 97);
    StepInput input;
    input.x = Tensor(x.data(), DType::kF32, {n, 64});
    model_->embed(ids, input.x);
    const std::vector<Position> at = as_text(positions);
    input.tokens = positions;
    input.positions = at;
    input.runs = runs;
    input.logit_rows = logit_rows;
    input.kv = &kv;
    input.hooks = hooks;
    input.pattern = pattern;
    input.logits = Tensor(logits.data(), DType::kF32, {static_cast<int64_t>(logit_rows.size()), 97});
    model_->forward(input);
    return logits;
  }

  static void expect_near(std::span<const float> a, std::span<const float> b, float tolerance = 2e-5f) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
};

TEST_F(TextDecoderTest, ChunksGiveTheSameLogits) {
  const std::vector<int32_t> ids = tokens(70);
  ContiguousKv whole_kv = cache(), kv = cache();
  const std::vector<float> whole = step(whole_kv, {{ids}}, count_up(70));
  std::vector<float> chunked;
  for (size_t at = 0; at < ids.size(); at += 7) {
    const std::vector<int32_t> part(ids.begin() + static_cast<long>(at), ids.begin() + static_cast<long>(at + 7));
    const std::vector<float> logits = step(kv, {{part, static_cast<int32_t>(at)}}, count_up(7));
    chunked.insert(chunked.end(), logits.begin(), logits.end());
  }
  expect_near(whole, chunked);
}

TEST_F(TextDecoderTest, BatchEqualsItsSequencesAlone) {
  const std::vector<int32_t> a = tokens(9, 1), b = tokens(33, 2), c = tokens(1, 3);
  std::vector<float> single;
  for (const auto& ids : {a, b, c}) {
    ContiguousKv kv = cache();
    const std::vector<float> logits = step(kv, {{ids}}, {static_cast<int32_t>(ids.size()) - 1});
    single.insert(single.end(), logits.begin(), logits.end());
  }
  ContiguousKv kv = cache(3);
  expect_near(single, step(kv, {{a}, {b}, {c}}, {8, 41, 42}));
}

TEST_F(TextDecoderTest, LastLayerSkipsOnlyUnrequestedRows) {
  const std::vector<int32_t> ids = tokens(20);
  ContiguousKv a = cache(), b = cache(), c = cache();
  const std::vector<float> all = step(a, {{ids}}, count_up(20));
  std::vector<float> some;
  for (const size_t row : {3, 11, 19})
    some.insert(some.end(), all.begin() + static_cast<long>(row * 97), all.begin() + static_cast<long>(row * 97 + 97));
  expect_near(some, step(b, {{ids}}, {3, 11, 19}));
  EXPECT_TRUE(step(c, {{ids}}, {}).empty());
  EXPECT_EQ(c.n_slots(2), 20);  // no logits, but K and V of every layer
  expect_near(step(a, {{{5}, 20}}, {0}), step(c, {{{5}, 20}}, {0}));
}

// Drops two rows after layer 0.
class DropRows : public LayerHooks {
 public:
  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override {
    seen_rows.push_back(observed.q.rows());
    for (int32_t i = 0; i < observed.q.rows(); ++i) {
      if (i != 2 && i != 5) keep.push_back(i);
    }
    return layer == 0;
  }
  std::vector<int64_t> seen_rows;
};

// DeepStack: the rows added after the first layers, at chosen rows, whether these layers run together or one by one,
// and whatever rows leave the step before.
TEST_F(TextDecoderTest, AddendsFollowTheirRows) {
  constexpr int64_t kRows = 9, kHidden = 64;
  const std::vector<int32_t> ids = tokens(kRows), positions = count_up(kRows), rows = {1, 2, 3, 5, 7}, last = {8};
  const std::vector<Position> at = as_text(positions);
  const RowRun run{0, 0, kRows};
  std::vector<float> values[2];
  std::vector<Tensor> addends;
  for (std::vector<float>& layer : values) {
    for (int64_t i = 0; i < std::ssize(rows) * kHidden; ++i) {
      layer.push_back(std::sin(static_cast<float>(i + 100 * std::ssize(addends))));
    }
    addends.emplace_back(layer.data(), DType::kF32, std::initializer_list<int64_t>{std::ssize(rows), kHidden});
  }
  for (const bool drops : {false, true}) {
    std::vector<float> x(kRows * kHidden), logits(97), by_hand(97);
    DropRows hook;
    StepInput input;
    input.x = Tensor(x.data(), DType::kF32, {kRows, kHidden});
    input.tokens = positions, input.positions = at, input.runs = {&run, 1}, input.logit_rows = last;
    input.hooks = drops ? &hook : nullptr;
    ContiguousKv together = cache(), one_by_one = cache();
    model_->embed(ids, input.x);
    input.kv = &together, input.logits = Tensor(logits.data(), DType::kF32, {1, 97});
    input.addend_rows = rows, input.addends = addends;
    model_->forward(input);
    input.addends = {};
    model_->embed(ids, input.x);
    input.kv = &one_by_one, input.logits = Tensor(by_hand.data(), DType::kF32, {1, 97});
    const auto n_layers = static_cast<int32_t>(model_->config().text.n_layers);
    std::vector<int32_t> live = positions, live_last = last;
    for (int32_t layer = 0; layer < n_layers; ++layer) {
      const std::vector<Position> live_at = as_text(live);
      const RowRun live_run{0, 0, static_cast<int32_t>(live.size())};
      live_last = {static_cast<int32_t>(live.size()) - 1};
      input.tokens = live, input.positions = live_at, input.runs = {&live_run, 1};
      input.layers = {layer, layer + 1};
      input.logit_rows = layer + 1 == n_layers ? std::span<const int32_t>(live_last) : std::span<const int32_t>();
      model_->forward(input);
      if (layer == 0 && drops) {  // rows 2 and 5 have left
        std::vector<int32_t> kept;
        for (int32_t i = 0; i < kRows; ++i) {
          if (i == 2 || i == 5) continue;
          std::copy_n(input.x.row<float>(i), kHidden, input.x.row<float>(std::ssize(kept)));
          kept.push_back(i);
        }
        live = kept;
        input.x = input.x.slice_rows(0, std::ssize(kept));
      }
      for (size_t i = 0; layer < 2 && i < rows.size(); ++i) {
        const auto row = std::ranges::find(live, rows[i]);
        if (row == live.end()) continue;
        float* to = input.x.row<float>(row - live.begin());
        for (int64_t c = 0; c < kHidden; ++c)
          to[c] += addends[static_cast<size_t>(layer)].row<float>(static_cast<int64_t>(i))[c];
      }
    }
    EXPECT_EQ(logits, by_hand) << drops;
  }
}

// Hides two slots from every layer but the first.
class HideSlots : public LayerHooks {
 public:
  KvView view(int layer, const RowRun&, const Tensor&, const Tensor&, const KvView& full) override {
    if (layer == 0) return full;
    bias_.assign(static_cast<size_t>(full.n_kv_heads * full.slot_stride), 0.0f);
    for (int32_t h = 0; h < full.n_kv_heads; ++h) {
      for (const int32_t slot : {2, 5}) {
        bias_[static_cast<size_t>(h * full.slot_stride + slot)] = -std::numeric_limits<float>::infinity();
      }
    }
    KvView view = full;
    view.slot_bias = bias_.data();
    return view;
  }

 private:
  std::vector<float> bias_;
};

TEST_F(TextDecoderTest, DroppedRowsEqualHiddenSlotsInLaterLayers) {
  const std::vector<int32_t> ids = tokens(12);
  ContiguousKv dropped_kv = cache(), hidden_kv = cache();
  DropRows drop;
  HideSlots hide;
  const std::vector<int32_t> rows = {1, 3, 4, 6, 11};
  expect_near(step(dropped_kv, {{ids}}, rows, &drop), step(hidden_kv, {{ids}}, rows, &hide));
  EXPECT_EQ(drop.seen_rows, (std::vector<int64_t>{12, 10, 10}));
  EXPECT_EQ(dropped_kv.n_slots(0), 12);
  EXPECT_EQ(dropped_kv.n_slots(2), 10);
}

TEST_F(TextDecoderTest, RowsAreDroppedWithinTheirSequence) {
  const std::vector<int32_t> a = tokens(8, 1), b = tokens(9, 2);
  class DropThird : public LayerHooks {
   public:
    bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
      for (const RowRun& run : o.runs) {
        for (int32_t i = 0; i < run.n_rows; ++i) {
          if (i != 2) keep.push_back(run.row_begin + i);
        }
      }
      return layer <= 1;
    }
  } hook;
  std::vector<float> single;
  for (const auto& ids : {a, b}) {
    ContiguousKv kv = cache();
    const std::vector<float> logits = step(kv, {{ids}}, {static_cast<int32_t>(ids.size()) - 1}, &hook);
    single.insert(single.end(), logits.begin(), logits.end());
  }
  ContiguousKv kv = cache(2);
  expect_near(single, step(kv, {{a}, {b}}, {7, 16}, &hook));
  EXPECT_EQ(kv.n_slots(2, 1), 7);
}

// In a model of one layer K and V depend on the token and its position alone, so streaming must equal a prompt of just
// the sinks and the window, renumbered.
TEST_F(TextDecoderTest, StreamingEqualsARenumberedPrompt) {
  make(tiny("llama", 1));
  constexpr int32_t kSinks = 3, kWindow = 5;
  const std::vector<int32_t> ids = tokens(30);
  ContiguousKv kv = cache();
  const std::vector<float> streamed = step(kv, {{ids}}, count_up(30), nullptr, {kSinks, kWindow});
  for (int32_t i : {2, 7, 8, 12, 29}) {
    std::vector<int32_t> seen;
    for (int32_t j = 0; j <= i; ++j) {
      if (j < kSinks || j > i - kWindow) seen.push_back(ids[static_cast<size_t>(j)]);
    }
    ContiguousKv plain = cache();
    const auto last = static_cast<int32_t>(seen.size()) - 1;
    expect_near(step(plain, {{seen}}, {last}), std::span(streamed).subspan(static_cast<size_t>(i) * 97, 97), 1e-4f);
  }
}

TEST_F(TextDecoderTest, KeysAreRoundedBeforeRotation) {
  class Spy : public ContiguousKv {
   public:
    using ContiguousKv::ContiguousKv;
    KvView append(int layer, const RowRun& run, std::span<const int32_t> tokens, const Tensor& k,
                  const Tensor& v) override {
      for (int64_t i = 0; i < k.rows(); ++i) {
        for (int64_t c = 0; c < k.row_size(); ++c) {
          const float x = k.row<float>(i)[c];
          n_unrounded += x != to_float(to_bf16(x));
        }
      }
      return ContiguousKv::append(layer, run, tokens, k, v);
    }
    int n_unrounded = 0;
  };
  Spy rounded(model_->config().text, *backend_, KvCodec::kBF16, 64),
      exact(model_->config().text, *backend_, KvCodec::kF32, 64);
  step(rounded, {{tokens(10)}}, {9});
  step(exact, {{tokens(10)}}, {9});
  EXPECT_EQ(rounded.n_unrounded, 0);
  EXPECT_GT(exact.n_unrounded, 0);
}

TEST_F(TextDecoderTest, TokensOutsideTheVocabularyAreAnError) {
  std::vector<float> x(64);
  const std::vector<int32_t> ids = {97};
  EXPECT_THROW(model_->embed(ids, Tensor(x.data(), DType::kF32, {1, 64})), Error);
}

}  // namespace
}  // namespace vlcache
