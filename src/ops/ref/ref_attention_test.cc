// Reference attention against explicit m x m softmax in double, with every way to mask, shift or weigh a slot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "ops/ref/ref_backend.h"
#include "ops/ref/ref_test_util.h"

namespace vlcache {
namespace {

using ref_test::Cache;
using ref_test::kRef;
using ref_test::Matrix;
using ref_test::Seed;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
// Everything about one (row, head, slot) that decides its logit.
struct Rule {
  std::function<bool(int64_t row, int64_t slot)> sees = [](int64_t, int64_t) { return true; };
  std::function<double(int64_t kv_head, int64_t slot)> bias = [](int64_t, int64_t) { return 0.0; };
  int64_t n_sinks = 0;
  std::vector<float> sink_logits;  // [H] or empty
};

// The full m x m matrix of one query head in double: probs [n_rows, n_slots], lse [n_rows].
struct Naive {
  std::vector<std::vector<double>> probs;
  std::vector<double> lse;
};
Naive naive_attention(const Matrix& q, const Matrix& q_sinks, const Matrix& k, int64_t head, const Rule& rule,
                      double scale, const std::vector<int32_t>& n_after) {
  const int64_t n_rows = q.t.rows(), n_slots = k.t.rows(), kv_head = head / (kHeads / kKvHeads);
  Naive result;
  for (int64_t i = 0; i < n_rows; ++i) {
    std::vector<double> p(static_cast<size_t>(n_slots), 0.0);
    double total = rule.sink_logits.empty() ? 0.0 : std::exp(double{rule.sink_logits[static_cast<size_t>(head)]});
    for (int64_t j = 0; j < n_slots; ++j) {
      if (j >= n_slots - n_after[static_cast<size_t>(i)] || !rule.sees(i, j)) continue;
      double logit = rule.bias(kv_head, j);
      const Matrix& from = j < rule.n_sinks ? q_sinks : q;
      for (int64_t c = 0; c < kDim; ++c) {
        logit += scale * from.at((i * kHeads + head) * kDim + c) *
                 static_cast<double>(k.at((j * kKvHeads + kv_head) * kDim + c));
      }
      total += p[static_cast<size_t>(j)] = std::exp(logit);
    }
    for (double& x : p) x = total > 0.0 ? x / total : 0.0;
    result.probs.push_back(p);
    result.lse.push_back(std::log(total));
  }
  return result;
}

// One sequence of n_rows queries over n_slots, filled with random K and V.
struct Scene {
  Matrix q, q_sinks, k, v, out, lse;
  Cache cache;
  AttentionArgs args;
  Rule rule;
  std::vector<int32_t> n_after;  // passed to attention when `scattered`
  bool scattered = false;

  Scene(int32_t n_rows, int32_t n_slots, const std::function<void(Cache&)>& prepare = {})
      : q({n_rows, kHeads, kDim}, Seed(1)),
        q_sinks({n_rows, kHeads, kDim}, Seed(2)),
        k({n_slots, kKvHeads, kDim}, Seed(3)),
        v({n_slots, kKvHeads, kDim}, Seed(4)),
        out({n_rows, kHeads, kDim}),
        lse({n_rows, kHeads}),
        cache(*kRef, {n_slots, n_slots}, kDim) {
    for (Matrix* m : {&q, &q_sinks}) {
      for (float& x : m->data) x *= 3.0f;
    }
    for (Matrix* m : {&k, &v}) {  // exact in bf16, so that codecs do not matter
      for (float& x : m->data) x = to_float(to_bf16(x));
    }
    for (int64_t i = 0; i < n_rows; ++i) n_after.push_back(static_cast<int32_t>(n_rows - 1 - i));
    if (prepare) prepare(cache);
    kRef->kv_write(k.t, v.t, cache.view);
    args = {.scale = 0.5f, .lse = lse.t};
  }

  void expect_naive() {
    const int32_t n_rows = static_cast<int32_t>(q.t.rows());
    AttentionSeq seq{0, n_rows, cache.view};
    if (scattered) seq.n_after = n_after.data();
    Matrix logits({kHeads, k.t.rows()});
    if (n_rows == 1) seq.logits = logits.data.data(), seq.logits_stride = k.t.rows();
    kRef->attention(q.t, std::span(&seq, 1), args, out.t);
    for (int64_t h = 0; h < kHeads; ++h) {
      const Naive naive = naive_attention(q, q_sinks, k, h, rule, static_cast<double>(args.scale), n_after);
      for (int64_t j = 0; j < k.t.rows() && n_rows == 1; ++j) {  // e^(logit - lse) is the attention
        EXPECT_NEAR(std::exp(logits.at(h * k.t.rows() + j) - lse.at(h)), naive.probs[0][static_cast<size_t>(j)], 1e-5);
      }
      for (int64_t i = 0; i < n_rows; ++i) {
        EXPECT_NEAR(lse.at(i * kHeads + h), naive.lse[static_cast<size_t>(i)], 1e-5);
        for (int64_t c = 0; c < kDim; ++c) {
          double expected = 0.0;
          for (int64_t j = 0; j < k.t.rows(); ++j) {
            expected +=
                naive.probs[static_cast<size_t>(i)][static_cast<size_t>(j)] * v.at((j * kKvHeads + h / 2) * kDim + c);
          }
          ASSERT_NEAR(out.at((i * kHeads + h) * kDim + c), expected, 1e-5) << "row " << i << " head " << h;
        }
      }
    }
  }
};

TEST(RefAttention, CausalOverPages) {
  for (const auto& [n_rows, n_slots] : {std::pair{1, 1}, {1, 150}, {70, 70}, {9, 133}})
    Scene(n_rows, n_slots).expect_naive();
}

// gpt-oss: of four heads one has softmax1, one no sink, one a sink that outweighs all slots.
const std::vector<float> kSinkLogits = {0.0f, -std::numeric_limits<float>::infinity(), 30.0f, -1.5f};

TEST(RefAttention, SinkLogits) {
  for (const auto& [n_rows, n_slots] : {std::pair{1, 150}, {9, 133}}) {
    Scene s(n_rows, n_slots);
    s.args.sink_logits = s.rule.sink_logits = kSinkLogits;
    s.expect_naive();
  }
}

TEST(RefAttention, MixedCodecs) {
  Scene(9, 200, [](Cache& c) { c.mix_codecs(); }).expect_naive();
}

TEST(RefAttention, SlotBias) {
  Scene s(9, 90);
  s.cache.bias.assign(180, 0.0f);
  for (size_t i = 0; i < 180; i += 7) s.cache.bias[i] = std::log(3.0f);
  s.cache.view.slot_bias = s.cache.bias.data();
  s.rule.bias = [&](int64_t h, int64_t j) {
    return static_cast<double>(s.cache.bias[static_cast<size_t>(h * 90 + j)]);
  };
  s.expect_naive();
}

TEST(RefAttention, HiddenSlots) {
  for (int32_t n_rows : {1, 9}) {
    Scene s(n_rows, 90);
    s.cache.bias.assign(180, 0.0f);
    for (size_t i = 0; i < 180; ++i) {
      if (i % 7 == 0) s.cache.bias[i] = std::log(3.0f);
      if (i % 5 == 0) s.cache.bias[i] = -std::numeric_limits<float>::infinity();
    }
    s.cache.view.slot_bias = s.cache.bias.data();
    s.rule.bias = [&](int64_t h, int64_t j) { return double{s.cache.bias[static_cast<size_t>(h * 90 + j)]}; };
    s.expect_naive();
  }
}

TEST(RefAttention, AllSlotsHidden) {
  Cache cache(*kRef, {3, 3}, kDim);
  Matrix k({3, kKvHeads, kDim}, Seed(1)), v({3, kKvHeads, kDim}, Seed(2));
  kRef->kv_write(k.t, v.t, cache.view);
  const std::vector<float> bias(6, -std::numeric_limits<float>::infinity());
  cache.view.slot_bias = bias.data();
  Matrix q({1, kHeads, kDim}, Seed(3)), out({1, kHeads, kDim}), lse({1, kHeads}), seen({kHeads, 3});
  const AttentionSeq seq{0, 1, cache.view};
  kRef->attention(q.t, std::span(&seq, 1), {.lse = lse.t}, out.t);
  for (float x : out.data) EXPECT_EQ(x, 0.0f);
  for (float x : lse.data) EXPECT_EQ(x, bias[0]);
  AttentionStats stats{.seen_counts = seen.t};
  kRef->attention_stats(q.t, cache.view, {}, stats);
  for (float x : seen.data) EXPECT_EQ(x, -77.0f);
}

TEST(RefAttention, ScatteredRows) {
  for (int32_t n_rows : {1, 9}) {
    Scene s(n_rows, 90);
    for (int32_t i = 0; i < n_rows; ++i) s.n_after[static_cast<size_t>(i)] = (i * 31 + 11) % 90;
    s.scattered = true;
    s.expect_naive();
  }
}

TEST(RefAttention, WindowBySlots) {
  Scene s(9, 90);
  s.args.window = 13;
  s.rule.sees = [](int64_t row, int64_t slot) { return slot > 81 + row - 13; };
  s.expect_naive();
}

TEST(RefAttention, WindowByPositions) {
  Scene s(9, 90);
  std::vector<int32_t> slot_pos(180), positions(9);
  for (int32_t j = 0; j < 90; ++j) slot_pos[static_cast<size_t>(j)] = slot_pos[static_cast<size_t>(90 + j)] = 3 * j;
  for (int32_t i = 0; i < 9; ++i) positions[static_cast<size_t>(i)] = 3 * (81 + i);
  s.cache.view.slot_pos = slot_pos.data();
  s.args.window = 13;
  s.args.positions = positions.data();
  s.rule.sees = [](int64_t row, int64_t slot) { return 3 * slot > 3 * (81 + row) - 13; };
  s.expect_naive();
}

TEST(RefAttention, SinksWithTheirOwnQueries) {
  Scene s(90, 90);
  s.args.window = 13;
  s.args.n_sinks = 4;
  s.args.q_sinks = &s.q_sinks.t;
  s.rule.n_sinks = 4;
  s.rule.sees = [](int64_t row, int64_t slot) { return slot < 4 || slot > row - 13; };
  s.expect_naive();
}

TEST(CodedEnd, StaysTwoPagesBeforeTheBlock) {
  EXPECT_THAT((std::vector{coded_end(-1), coded_end(0), coded_end(255)}), testing::Each(1));
  EXPECT_THAT((std::vector{coded_end(256), coded_end(511)}), testing::Each(2));
  EXPECT_EQ(coded_end(512), 6);
  EXPECT_EQ(coded_end(2048), 30);
}

// Pages of values and their codes: a view of the forms that rows see, up to the row in the last slot.
struct FormedCache {
  Cache values, codes;
  std::vector<int32_t> pages, born;
  std::vector<uint8_t> codecs;
  KvView view;

  explicit FormedCache(int32_t n_slots) : values(*kRef, {n_slots}, kDim), codes(*kRef, {n_slots}, kDim) {
    const Seed seed(5);
    const Matrix k({n_slots, 1, kDim}, seed), v({n_slots, 1, kDim}, seed);
    kRef->kv_write(k.t, v.t, values.view);
    codes.view.codec = KvCodec::kInt8;
    kRef->kv_write(k.t, v.t, codes.view);
    view = values.view;
    view.pools[static_cast<size_t>(KvCodec::kInt8)] = codes.view.pools[static_cast<size_t>(KvCodec::kInt8)];
    set_end(coded_end(n_slots - 1));
    view.born = born.data();
  }
  // Pages [1, end) are coded.
  void set_end(int32_t end) {
    pages = values.pages;
    codecs.assign(pages.size(), static_cast<uint8_t>(KvCodec::kF32));
    born.assign(pages.size(), -1);
    for (size_t i = 1; i < static_cast<size_t>(end); ++i) {
      born[i] = std::exchange(pages[i], codes.pages[i]);
      codecs[i] = static_cast<uint8_t>(KvCodec::kInt8);
    }
    view.pages = pages.data();
    view.codecs = codecs.data();
  }
};

// Rows computed together see what each sees alone, where its codes end.
TEST(RefAttention, RowsReadTheFormsOfTheirSlots) {
  constexpr int32_t kSlots = 600;
  FormedCache together(kSlots), alone(kSlots);
  alone.view.born = nullptr;
  const Matrix q({kSlots, 2, kDim}, Seed(6));
  const Matrix out({kSlots, 2, kDim}), sums({2, kSlots}, std::vector<float>(2 * kSlots, 0.0f));
  const AttentionArgs args{.scale = 0.5f};
  const AttentionSeq all{.n_rows = kSlots, .kv = together.view};
  kRef->attention(q.t, {&all, 1}, args, out.t);
  AttentionStats stats{.column_sums = sums.t};
  kRef->attention_stats(q.t, together.view, args, stats);

  const Matrix one({kSlots, 2, kDim}), one_sums({2, kSlots}, std::vector<float>(2 * kSlots, 0.0f));
  AttentionStats one_stats{.column_sums = one_sums.t};
  for (int32_t i = 0; i < kSlots; ++i) {
    alone.set_end(coded_end(i));
    const int32_t n_slots = i + 1;
    alone.view.n_slots = &n_slots;
    const AttentionSeq row{.row_begin = i, .n_rows = 1, .kv = alone.view};
    kRef->attention(q.t, {&row, 1}, args, one.t);
    kRef->attention_stats(q.t.slice_rows(i, i + 1), alone.view, args, one_stats);
  }
  EXPECT_EQ(out.data, one.data);
  EXPECT_EQ(sums.data, one_sums.data);
}

TEST(RefAttention, HandComputed) {
  // One head of one dimension; logits 0 and log 3 (from the bias): weights 1/4 and 3/4.
  Cache cache(*kRef, {2}, 1);
  Matrix k({2, 1, 1}, {5, 7}), v({2, 1, 1}, {4, 8}), q({1, 1, 1}, std::vector<float>(1, 0.0f)), out({1, 1, 1}),
      lse({1, 1});
  kRef->kv_write(k.t, v.t, cache.view);
  const std::vector<float> bias = {0.0f, std::log(3.0f)};
  cache.view.slot_bias = bias.data();
  const AttentionSeq seq{0, 1, cache.view};
  kRef->attention(q.t, std::span(&seq, 1), {.lse = lse.t}, out.t);
  EXPECT_FLOAT_EQ(out.at(0), 7.0f);
  EXPECT_FLOAT_EQ(lse.at(0), std::log(4.0f));

  // A sink of log 4 takes half of the attention: 1/8 and 3/8 are left.
  const std::vector<float> sink = {std::log(4.0f)};
  kRef->attention(q.t, std::span(&seq, 1), {.lse = lse.t, .sink_logits = sink}, out.t);
  EXPECT_FLOAT_EQ(out.at(0), 3.5f);
  EXPECT_FLOAT_EQ(lse.at(0), std::log(8.0f));
}

TEST(RefAttention, NoVisibleSlotsGiveZero) {
  Cache cache(*kRef, {0, 3}, kDim);
  Matrix q({5, kHeads, kDim}, Seed(1)), out({5, kHeads, kDim}), lse({5, kHeads});
  const std::vector<AttentionSeq> seqs = {{1, 0, cache.view}, {2, 1, cache.view}};
  kRef->attention(q.t, seqs, {.lse = lse.t}, out.t);
  EXPECT_EQ(lse.at(2 * kHeads), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isfinite(lse.at(2 * kHeads + 2)));  // the second kv head has slots
  for (int64_t c = 0; c < kDim; ++c) EXPECT_EQ(out.at(2 * kHeads * kDim + c), 0.0f);
  EXPECT_EQ(out.at(0), -77.0f) << "a row outside all sequences was written";
  EXPECT_EQ(lse.at(4 * kHeads), -77.0f);

  kRef->attention(q.t, seqs, {.lse = lse.t, .sink_logits = kSinkLogits}, out.t);
  EXPECT_EQ(lse.at(2 * kHeads), 0.0f) << "the sink alone";
  EXPECT_EQ(lse.at(2 * kHeads + 1), -std::numeric_limits<float>::infinity());
  for (int64_t c = 0; c < kDim; ++c) EXPECT_EQ(out.at(2 * kHeads * kDim + c), 0.0f);
}

TEST(RefMergeAttention, HalvesMakeTheWhole) {
  const int32_t n = 130, cut = 64;
  Scene whole(1, n);
  whole.expect_naive();
  KvView first = whole.cache.view, second = whole.cache.view;
  const std::vector<int32_t> n_first = {cut, cut}, n_second = {n - cut, n - cut};
  first.n_slots = n_first.data();
  second.n_slots = n_second.data();
  ++second.pages;  // head h's list starts at page 1
  Matrix oa({1, kHeads, kDim}), ob({1, kHeads, kDim}), la({1, kHeads}), lb({1, kHeads});
  const AttentionSeq seq_a{0, 1, first}, seq_b{0, 1, second};
  kRef->attention(whole.q.t, std::span(&seq_a, 1), {.scale = 0.5f, .lse = la.t}, oa.t);
  kRef->attention(whole.q.t, std::span(&seq_b, 1), {.scale = 0.5f, .lse = lb.t}, ob.t);
  kRef->merge_attention(oa.t, la.t, ob.t, lb.t, oa.t, la.t);
  EXPECT_THAT(oa.data, testing::Pointwise(testing::FloatNear(1e-6f), whole.out.data));
  EXPECT_THAT(la.data, testing::Pointwise(testing::FloatNear(1e-5f), whole.lse.data));

  // A sink's logit belongs to no part: it is merged once, at the end, as a part of values 0.
  whole.args.sink_logits = whole.rule.sink_logits = kSinkLogits;
  whole.expect_naive();
  const Matrix zero({1, kHeads, kDim}, std::vector<float>(kHeads * kDim, 0.0f)), sinks({1, kHeads}, kSinkLogits);
  kRef->merge_attention(oa.t, la.t, zero.t, sinks.t, oa.t, la.t);
  EXPECT_THAT(oa.data, testing::Pointwise(testing::FloatNear(1e-6f), whole.out.data));
  EXPECT_THAT(la.data, testing::Pointwise(testing::FloatNear(1e-5f), whole.lse.data));
}

TEST(RefMergeAttention, EmptyStateIsNeutral) {
  const float nothing = -std::numeric_limits<float>::infinity();
  Matrix oa({1, 2, 1}, {5, 5}), ob({1, 2, 1}, {9, 9}), la({1, 2}, {nothing, nothing}), lb({1, 2}, {2, nothing});
  Matrix o({1, 2, 1}), lse({1, 2});
  kRef->merge_attention(oa.t, la.t, ob.t, lb.t, o.t, lse.t);
  EXPECT_THAT(o.data, testing::ElementsAre(9, 0));
  EXPECT_THAT(lse.data, testing::ElementsAre(2, nothing));
}

TEST(RefAttentionStats, SumsOfTheMatrix) {
  const int32_t n_rows = 9, n_slots = 90;
  for (const bool sink : {false, true})
    for (AttentionStats::Rule rule : {AttentionStats::Rule::kRowMax, AttentionStats::Rule::kUniform}) {
      Scene s(n_rows, n_slots);
      if (sink) s.args.sink_logits = s.rule.sink_logits = kSinkLogits;
      s.args.window = 40;
      s.args.n_sinks = 4;
      s.args.q_sinks = &s.q_sinks.t;
      s.rule.n_sinks = 4;
      s.rule.sees = [](int64_t row, int64_t slot) { return slot < 4 || slot > 81 + row - 40; };
      Matrix sums({kHeads, n_slots + 2}), band({kHeads, n_slots + 2}), below({kHeads, n_slots + 2}),
          seen({kHeads, n_slots + 2});
      for (Matrix* m : {&sums, &band, &below, &seen}) std::fill(m->data.begin(), m->data.end(), 0.5f);
      AttentionStats stats{.rule = rule,
                           .threshold = 0.1f,
                           .band = 25,
                           .column_sums = sums.t,
                           .band_sums = band.t,
                           .below_counts = below.t,
                           .seen_counts = seen.t};
      kRef->attention_stats(s.q.t, s.cache.view, s.args, stats);
      for (int64_t h = 0; h < kHeads; ++h) {
        const Naive naive = naive_attention(s.q, s.q_sinks, s.k, h, s.rule, 0.5, s.n_after);
        for (int64_t j = 0; j < n_slots + 2; ++j) {
          double sum = 0.5, in_band = 0.5, n_below = 0.5, n_seen = 0.5;
          for (int64_t i = 0; i < n_rows && j < n_slots; ++i) {
            if (j > n_slots - n_rows + i || !s.rule.sees(i, j)) continue;
            const std::vector<double>& p = naive.probs[static_cast<size_t>(i)];
            const double a = p[static_cast<size_t>(j)], top = *std::max_element(p.begin(), p.end());
            const double n_visible =
                static_cast<double>(p.size() - static_cast<size_t>(std::count(p.begin(), p.end(), 0.0)));
            sum += a;
            in_band += j > n_slots - n_rows + i - 25 ? a : 0;  // 25 slots up to and with the row's own
            n_below += a < (rule == AttentionStats::Rule::kRowMax ? 0.1 * top : 1.0 / n_visible);
            n_seen += 1;
          }
          const int64_t at = h * (n_slots + 2) + j;
          ASSERT_NEAR(sums.at(at), sum, 1e-5) << "head " << h << " slot " << j;
          ASSERT_NEAR(band.at(at), in_band, 1e-5) << "head " << h << " slot " << j;
          ASSERT_EQ(below.at(at), n_below) << "head " << h << " slot " << j;
          ASSERT_EQ(seen.at(at), n_seen) << "head " << h << " slot " << j;
        }
      }
    }
}

TEST(RefAttentionStats, MaximaAndWeightsOfScatteredRows) {
  const int32_t n_rows = 9, n_slots = 90;
  Scene s(n_rows, n_slots);
  for (int32_t i = 0; i < n_rows; ++i) s.n_after[static_cast<size_t>(i)] = (i * 31 + 11) % n_slots;
  const std::vector<float> weights = {0, 1, 2, -1, 0.5f, 0, 3, 1, 1};
  Matrix sums({kHeads, n_slots}), most({kHeads, n_slots});
  std::fill(sums.data.begin(), sums.data.end(), 0.0f);
  std::fill(most.data.begin(), most.data.end(), 0.05f);
  AttentionStats stats{.n_after = s.n_after.data(), .row_weight = weights.data()};
  stats.column_sums = sums.t, stats.column_max = most.t;
  kRef->attention_stats(s.q.t, s.cache.view, s.args, stats);
  for (int64_t h = 0; h < kHeads; ++h) {
    const Naive naive = naive_attention(s.q, s.q_sinks, s.k, h, s.rule, 0.5, s.n_after);
    for (int64_t j = 0; j < n_slots; ++j) {
      double sum = 0.0, largest = 0.05f;
      for (size_t i = 0; i < naive.probs.size(); ++i) {
        sum += double{weights[i]} * naive.probs[i][static_cast<size_t>(j)];
        largest = std::max(largest, naive.probs[i][static_cast<size_t>(j)]);
      }
      ASSERT_NEAR(sums.at(h * n_slots + j), sum, 1e-5);
      ASSERT_NEAR(most.at(h * n_slots + j), largest, 1e-5);
    }
  }
}

TEST(RefDenseAttention, BothWaysInsideEachImage) {
  const int64_t n = 12, n_heads = 2, d = 4;
  const std::vector<int32_t> offsets = {0, 5, 5, 12};
  Matrix q({n, n_heads, d}, Seed(1)), k({n, n_heads, d}, Seed(2)), v({n, n_heads, d}, Seed(3)), out({n, n_heads, d}),
      probs({n, n_heads});
  kRef->dense_attention(q.t, k.t, v.t, {.scale = 0.7f, .offsets = offsets, .first_row_probs = probs.t}, out.t);
  for (int64_t h = 0; h < n_heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t begin = i < 5 ? 0 : 5, end = i < 5 ? 5 : 12;
      std::vector<double> p;
      double total = 0.0;
      for (int64_t j = begin; j < end; ++j) {
        double logit = 0.0;
        for (int64_t c = 0; c < d; ++c)
          logit += 0.7 * q.at((i * n_heads + h) * d + c) * static_cast<double>(k.at((j * n_heads + h) * d + c));
        p.push_back(std::exp(logit));
        total += p.back();
      }
      for (int64_t c = 0; c < d; ++c) {
        double expected = 0.0;
        for (int64_t j = begin; j < end; ++j)
          expected += p[static_cast<size_t>(j - begin)] / total * v.at((j * n_heads + h) * d + c);
        EXPECT_NEAR(out.at((i * n_heads + h) * d + c), expected, 1e-6);
      }
      if (i != begin) continue;
      for (int64_t j = begin; j < end; ++j)
        EXPECT_NEAR(probs.at(j * n_heads + h), p[static_cast<size_t>(j - begin)] / total, 1e-6);
    }
  }
}

}  // namespace
}  // namespace vlcache
