// Prompts that get shorter from layer to layer: against attention matrices written out, with any chunk, in a second
// turn, beside other requests, after a failure.
#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

constexpr int32_t kLayers = 6, kTokens = 90;

// Two images: tokens 10 .. 39 and 45 .. 69.
Prompt with_images(Engine& engine, int32_t n = kTokens) {
  Prompt prompt = engine.prepare_tokens(random_tokens(n));
  prompt.spans = {{.begin = 10, .end = 40, .image = 0, .first_row = 0}, {.begin = 45, .end = 70, .image = 1}};
  for (int i = 0; i < 2; ++i) prompt.images.emplace_back().allocate(1, 2, 2);
  return prompt;
}

bool is_image(int32_t token) { return (token >= 10 && token < 40) || (token >= 45 && token < 70); }

std::vector<int32_t> tokens_of(const Sequence& s, int32_t layer, int32_t head = 0) {
  const std::span<const int32_t> tokens = s.cache().slot_tokens(layer, head);
  return {tokens.begin(), tokens.end()};
}

// The attention of every row of a step to every slot of one layer, in double: [row][slot], the mean over all heads.
std::vector<std::vector<double>> attention_matrix(Engine& engine, const Observed& o) {
  const int64_t n = o.q.rows(), n_heads = o.q.dim(1), d = o.q.dim(2);
  const KvView& view = o.views.back();
  const int32_t n_slots = view.n_slots[0];
  CHECK(n_slots == n);  // one step has all rows
  std::vector<int32_t> slots(static_cast<size_t>(n_slots));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<std::vector<double>> mean(static_cast<size_t>(n), std::vector<double>(slots.size()));
  std::vector<float> keys(slots.size() * static_cast<size_t>(d)), values(keys.size());
  for (int64_t h = 0; h < n_heads; ++h) {
    engine.backend().kv_read(view, static_cast<int>(h / (n_heads / view.n_kv_heads)), slots,
                             Tensor(keys.data(), DType::kF32, {n, d}), Tensor(values.data(), DType::kF32, {n, d}));
    for (int64_t i = 0; i < n; ++i) {
      std::vector<double> row;
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < d; ++c) {
          dot += static_cast<double>(o.q.row<float>(i)[h * d + c]) * keys[static_cast<size_t>(j * d + c)];
        }
        row.push_back(std::exp(dot * o.scale));
      }
      const double sum = std::accumulate(row.begin(), row.end(), 0.0);
      for (size_t j = 0; j < row.size(); ++j) mean[static_cast<size_t>(i)][j] += row[j] / sum / n_heads;
    }
  }
  return mean;
}

// Drops rows after each layer's attention in one pass, by what `choose` returns for the whole attention matrix.
class Reference final : public LayerHooks {
 public:
  using Choose = std::function<std::vector<int32_t>(int layer, const std::vector<std::vector<double>>& attention,
                                                    std::span<const int32_t> tokens)>;
  Reference(Engine& engine, Choose choose) : engine_(engine), choose_(std::move(choose)) {}

  std::vector<std::vector<int32_t>> chosen;  // tokens, per layer
  bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
    const std::vector<int32_t> rows = choose_(layer, attention_matrix(engine_, o), o.tokens);
    std::vector<int32_t>& tokens = chosen.emplace_back();
    for (const int32_t row : rows) tokens.push_back(o.tokens[static_cast<size_t>(row)]);
    keep = rows;
    return layer + 1 < kLayers;
  }

 private:
  Engine& engine_;
  Choose choose_;
};

// The rows of the best scores, ascending.
std::vector<int32_t> best_rows(const std::vector<double>& scores, size_t n) {
  std::vector<int32_t> rows(scores.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::ranges::sort(rows, std::greater(), [&](int32_t r) { return scores[static_cast<size_t>(r)]; });
  rows.resize(n);
  std::ranges::sort(rows);
  return rows;
}

TEST(FastV, AgreesWithAttentionWrittenOut) {
  for (std::string_view backend : backend_names()) {
    for (const int32_t n_dense : {1, 2, 4}) {
      SCOPED_TRACE(std::string(backend) + " k=" + std::to_string(n_dense));
      const std::unique_ptr<Engine> engine = make_engine(kLayers, backend);
      Reference reference(*engine, [&](int layer, const auto& attention, std::span<const int32_t> tokens) {
        std::vector<double> scores = attention.back();
        for (size_t i = 0; i < tokens.size(); ++i) {
          if (!is_image(tokens[i])) scores[i] = 2;
        }
        return best_rows(scores, layer + 1 == n_dense ? tokens.size() - 27 : tokens.size());  // of 55, 27.5 -> 28 stay
      });
      const auto expected = make_sequence(*engine, random_tokens(kTokens));
      const std::vector<float> logits = step(*engine, *expected, 512, &reference);
      for (const int32_t chunk : {512, 32, 7}) {
        const auto s = engine->new_sequence(with_images(*engine), parse_policy("fastv:k=" + std::to_string(n_dense)));
        expect_close(compute(*engine, *s, chunk), logits);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          EXPECT_EQ(tokens_of(*s, layer), tokens_of(*expected, layer)) << layer;
          EXPECT_EQ(tokens_of(*s, layer).size(), layer < n_dense ? 90u : 63u);
          EXPECT_TRUE(std::ranges::equal(s->cache().slot_places(layer, 1), tokens_of(*s, layer)));
        }
        EXPECT_EQ(s->n_pending(), 0);
        EXPECT_FALSE(s->complete());
      }
    }
  }
}

TEST(PyramidInfer, AgreesWithAttentionWrittenOut) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(kLayers, backend);
    constexpr size_t kKept[] = {90, 72, 58, 46, 37, 29};  // 90 * 0.8^l = 90, 72, 57.6, 46.08, 36.86, 29.49
    constexpr int32_t kWindow = 20;
    Reference reference(*engine, [&](int layer, const auto& attention, std::span<const int32_t> tokens) {
      std::vector<double> scores(tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int32_t in_window = tokens[i] - (kTokens - kWindow);  // of the rows that are left
        for (size_t j = 0; in_window >= 0 && j <= i; ++j) scores[j] += (1 + 0.5 * in_window / 19) * attention[i][j];
      }
      const size_t n = kKept[layer];
      for (size_t i = 0; i < tokens.size(); ++i) {  // 3 sinks, a tenth of the rows that stay
        if (i < 3 || i + (n + 5) / 10 >= tokens.size()) scores[i] = 100;
      }
      return best_rows(scores, n);
    });
    const auto expected = make_sequence(*engine, random_tokens(kTokens));
    const std::vector<float> logits = step(*engine, *expected, 512, &reference);
    for (const int32_t chunk : {512, 32, 7}) {
      const auto s = engine->new_sequence(with_images(*engine),
                                          parse_policy("pyramid_infer:w=20,weight=1.5,decay=0.8,least=1,sinks=3"));
      expect_close(compute(*engine, *s, chunk), logits);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        EXPECT_EQ(tokens_of(*s, layer), reference.chosen[static_cast<size_t>(layer)]) << layer;
        EXPECT_EQ(tokens_of(*s, layer, 1), tokens_of(*s, layer)) << layer;
      }
    }
  }
}

// The remainder of a budget that does not divide evenly, and budgets that are refused.
TEST(FastV, MeetsABudgetExactly) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  const auto s = engine->new_sequence(with_images(*engine), parse_policy("fastv", "70"));
  compute(*engine, *s, 32);
  // 6 * 70 = 420 = 2 * 90 + 4 * 60
  for (int32_t layer = 2; layer < kLayers; ++layer) EXPECT_EQ(tokens_of(*s, layer).size(), 60u);
  const auto uneven = engine->new_sequence(with_images(*engine), parse_policy("fastv", "73"));
  compute(*engine, *uneven, 32);
  // 6 * 73 = 438 = 2 * 90 + 258 = 65 + 65 + 64 + 64; each layer's set contains the next one's
  const std::vector<int32_t> more = tokens_of(*uneven, 3), fewer = tokens_of(*uneven, 4);
  EXPECT_EQ(tokens_of(*uneven, 2), more);
  EXPECT_EQ(more.size(), 65u);
  EXPECT_EQ(fewer.size(), 64u);
  EXPECT_EQ(tokens_of(*uneven, 5), fewer);
  EXPECT_TRUE(std::ranges::includes(more, fewer));
}

std::string error_with(Engine& engine, const Prompt& prompt, std::string_view policy, std::string_view budget) {
  const auto s = engine.new_sequence(prompt, parse_policy(policy, budget));
  return error_of([&] { compute(engine, *s, 64); }, ErrorCode::kInput);
}

TEST(RowDropping, ErrorNamesTheSmallestPossibleBudget) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  const Prompt prompt = with_images(*engine), text = engine->prepare_tokens(random_tokens(50));
  // fastv: 2 * 90 + 4 * 35 = 320 of 6 layers: 53.3. pyramid_infer: 90 + 5 of 6: 15.8.
  EXPECT_NE(error_with(*engine, prompt, "fastv", "0.5").find("54 slots per (layer, kv head), a budget of 0.600"),
            std::string::npos);
  EXPECT_EQ(error_with(*engine, prompt, "fastv", "54"), "no error");
  EXPECT_NE(error_with(*engine, prompt, "pyramid_infer", "15").find("16 slots"), std::string::npos);
  EXPECT_EQ(error_with(*engine, prompt, "pyramid_infer", "16"), "no error");
  EXPECT_NE(error_with(*engine, text, "fastv", "0.9").find("fastv drops image tokens and there are none"),
            std::string::npos);
  EXPECT_EQ(error_with(*engine, text, "fastv", "1"), "no error");
  EXPECT_EQ(error_with(*engine, text, "fastv", ""), "no error");
  EXPECT_EQ(error_with(*engine, text, "pyramid_infer", "0.5"), "no error");
  Prompt chunked = with_images(*engine);
  chunked.evict_every = 40;
  EXPECT_NE(error_with(*engine, chunked, "fastv", "").find("it cannot evict while"), std::string::npos);
}

// All policies in one batch: each as if it were alone.
TEST(RowDropping, MatchesRequestsAloneInABatch) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  const std::vector<std::pair<const char*, const char*>> all{
      {"fastv", ""}, {"full", ""}, {"pyramid_infer", "0.4"}, {"snapkv", "0.3"}, {"fastv", "0.7"}, {"streaming", ""}};
  const auto run = [&](std::span<const std::pair<const char*, const char*>> choices) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Request> requests;
    for (const auto& [policy, budget] : choices) {
      sequences.push_back(engine->new_sequence(with_images(*engine), parse_policy(policy, budget)));
      Request& r = requests.emplace_back();
      r.sequence = sequences.back().get();
      r.options.max_tokens = 40;
      r.options.ignore_eos = true;
    }
    std::vector<std::vector<int32_t>> answers;
    for (const GenerateResult& result : generate(*engine, std::move(requests))) {
      EXPECT_FALSE(result.error);
      std::vector<int32_t>& ids = answers.emplace_back();
      for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
    }
    return answers;
  };
  const auto together = run(all);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(run({&all[i], 1})[0], together[i]) << all[i].first;
}

// A second turn drops only new tokens; what the first turn has kept stays.
TEST(RowDropping, SecondTurnDropsOnlyNewTokens) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  for (const auto& [policy, budget] : {std::pair{"fastv", "0.7"}, std::pair{"pyramid_infer/none", "0.4"}}) {
    SCOPED_TRACE(policy);
    const auto s = engine->new_sequence(with_images(*engine), parse_policy(policy, budget));
    compute(*engine, *s, 64);
    s->add_token(5);
    compute(*engine, *s, 64);
    std::vector<std::vector<int32_t>> before;
    for (int32_t layer = 0; layer < kLayers; ++layer) before.push_back(tokens_of(*s, layer));
    Prompt more = with_images(*engine, 150);  // a third image: tokens 100 .. 129
    more.tokens[kTokens] = 5;
    more.spans.push_back({.begin = 100, .end = 130, .image = 2, .first_row = 0});
    more.images.emplace_back().allocate(1, 2, 2);
    EXPECT_EQ(s->continue_with(more), 91);
    compute(*engine, *s, 16);
    int64_t n_new = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<int32_t> tokens = tokens_of(*s, layer);
      const auto first = std::ranges::lower_bound(tokens, 91);
      n_new += tokens.end() - first;
      EXPECT_EQ(tokens.back(), 149);
      tokens.erase(first, tokens.end());
      EXPECT_EQ(tokens, before[static_cast<size_t>(layer)]);
    }
    // 59 new tokens: 0.7 of them 41, 0.4 of them 24.
    EXPECT_EQ(n_new, std::string(policy) == "fastv" ? 41 * kLayers : 24 * kLayers);
    // Text after images that were cut already is no error.
    s->add_token(7);
    compute(*engine, *s, 16);
    Prompt text = with_images(*engine, 170);
    text.tokens[kTokens] = 5;
    text.tokens[150] = 7;
    text.spans = more.spans;
    text.images = std::move(more.images);
    EXPECT_EQ(s->continue_with(text), 151);
    compute(*engine, *s, 16);
    EXPECT_EQ(tokens_of(*s, kLayers - 1).back(), 169);
  }
}

class FailAfterAttention final : public LayerHooks {
 public:
  int layer = -1;
  bool after_attention(int l, const Observed&, std::vector<int32_t>&) override {
    if (l != layer) return false;
    layer = -1;
    throw Error(ErrorCode::kIo, "injected");
  }
};

// Steps that fail in any layer and are repeated, and a request that frees its KV in the middle.
TEST(RowDropping, ContinuesAfterAFailedStep) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  for (const char* policy : {"fastv", "pyramid_infer:least=1"}) {
    const auto whole = engine->new_sequence(with_images(*engine), parse_policy(policy)),
               s = engine->new_sequence(with_images(*engine), parse_policy(policy));
    const std::vector<float> expected = compute(*engine, *whole, 32);
    FailAfterAttention fail;
    std::vector<float> found;
    for (int i = 0; s->n_pending() > 0; ++i) {
      fail.layer = i % 2 == 0 ? i / 2 % kLayers : -1;
      try {
        found = step(*engine, *s, 32, &fail);
      } catch (const StepFailed& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
      }
      ASSERT_LT(i, 200);
      if (i == 9) s->release();
    }
    EXPECT_EQ(found, expected);
    for (int32_t layer = 0; layer < kLayers; ++layer) EXPECT_EQ(tokens_of(*s, layer), tokens_of(*whole, layer));
  }
}

// A request that ends in the middle of its prompt leaves what earlier turns have kept.
TEST(RowDropping, AcceptsAnotherPromptDuringPrefill) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  const auto s = engine->new_sequence(with_images(*engine), parse_policy("pyramid_infer", "0.4"));
  for (int i = 0; i < 5; ++i) step(*engine, *s, 32);
  EXPECT_GT(s->n_prefilled(), 0);
  EXPECT_LT(s->n_prefilled(), kTokens);
  Prompt other = engine->prepare_tokens(random_tokens(60, 3));
  EXPECT_EQ(s->continue_with(other), 0);
  const auto fresh = engine->new_sequence(other, parse_policy("pyramid_infer", "0.4"));
  EXPECT_EQ(compute(*engine, *s, 32), compute(*engine, *fresh, 32));
}

// After the last image, before the question is known: the question itself stays whole.
TEST(RowDropping, ActsAfterTheImageOnRequest) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  Prompt prompt = with_images(*engine);
  prompt.query_aware = false;
  for (const auto& [policy, budget] : {std::pair{"fastv", "0.7"}, std::pair{"pyramid_infer", "0.4"}}) {
    const auto s = engine->new_sequence(prompt, parse_policy(policy, budget));
    compute(*engine, *s, 16);
    int64_t n = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<int32_t> tokens = tokens_of(*s, layer);
      n += std::ssize(tokens);
      for (int32_t t = 69; t < kTokens; ++t) EXPECT_TRUE(std::ranges::binary_search(tokens, t)) << t;
    }
    EXPECT_EQ(n, kLayers * (20 + (std::string(policy) == "fastv" ? 49 : 28)));  // of 70
  }
}

// Pages of the kept rows, those of an earlier turn included.
TEST(RowDropping, ByteBudgetsAreNeverExceeded) {
  const std::unique_ptr<Engine> engine = make_engine(kLayers);
  const Prompt prompt = with_images(*engine, 400);
  const int64_t page = engine->new_sequence(prompt, parse_policy("full"))->cache().page_bytes(0);
  for (const int64_t n_pages : {30, 50, 100}) {
    const auto s = engine->new_sequence(prompt, parse_policy("pyramid_infer", std::to_string(n_pages * page) + "B"));
    compute(*engine, *s, 128);
    EXPECT_LE(s->cache().bytes(), n_pages * page);
    EXPECT_GE(s->cache().bytes(), std::min<int64_t>(n_pages, 84) * page * 8 / 10);
  }
  EXPECT_NE(error_with(*engine, prompt, "pyramid_infer", std::to_string(20 * page) + "B").find("bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace vlcache
