// Policies at work on sequences: a prompt compressed after its last token, running scores, slots hidden and freed.
#include <algorithm>
#include <cmath>

#include "base/os/resident_testing.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

TEST(PostVision, KeepsTheBudgetInEveryLayerAndHead) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(3, backend);
    const auto full = make_sequence(*engine, random_tokens(200));
    compute(*engine, *full, 64);
    for (const auto& [budget, k] : {std::pair{"0.1", 20}, std::pair{"33", 33}, std::pair{"1", 200}}) {
      const auto s = make_sequence(*engine, random_tokens(200), "post_vision+uniform", budget);
      compute(*engine, *s, 64);
      for (int32_t layer = 0; layer < 3; ++layer) {
        for (int32_t head = 0; head < kKvHeads; ++head) {
          EXPECT_EQ(s->cache().n_slots(layer, head), k);
          const std::span<const int32_t> tokens = s->cache().slot_tokens(layer, head);
          EXPECT_TRUE(std::ranges::is_sorted(tokens));
          EXPECT_EQ(tokens.back(), 199);
        }
      }
      EXPECT_EQ(s->cache().n_pages(), 3 * kKvHeads * ((k + 63) / 64));
      if (k < 193) {
        EXPECT_LT(s->cache().bytes(), full->cache().bytes());
      }
      s->add_token(5);
      EXPECT_EQ(s->tokens().back().meta.position.t, 200);  // generation continues at the true position
      compute(*engine, *s, 64);
      EXPECT_EQ(s->cache().n_slots(0, 0), k + 1);
    }
  }
}

// What a policy drops after 16k tokens is freed to the system, not only to the pool.
TEST(Eviction, ReturnsMemoryToTheSystem) {
  if (only_ref()) GTEST_SKIP() << "the reference is too slow for 16k tokens";
  constexpr int32_t kTokens = (16 << 10) + 1;  // the last one is a step of its own
  constexpr int64_t kTableBytesPerSlot = 12;   // its token, position and bias
  const std::unique_ptr<Engine> engine = make_engine(3, "auto", 64 << 20, "llama", 20000);
  const int64_t full_kv = int64_t{kTokens} * 3 * kKvHeads * 2 * kHeadDim * int64_t{sizeof(float)};
  Request request;
  request.prompt = engine->prepare_tokens(random_tokens(kTokens));
  request.policy = parse_policy("vl-cache", "0.1");
  request.options.max_tokens = 2;
  request.options.ignore_eos = true;
  Scheduler scheduler(*engine);
  const RequestId id = scheduler.add(std::move(request));
  int64_t most = 0, last = 0;
  while (scheduler.step()) most = std::max(most, last = resident_bytes());
  EXPECT_GE(most - last, full_kv * 85 / 100);
  const int64_t full_tables = full_kv / (2 * kHeadDim * int64_t{sizeof(float)}) * kTableBytesPerSlot;
  EXPECT_LE(scheduler.remove(id).kv.prompt_bytes, (full_kv + full_tables) * 11 / 100);
}

// Adds up the attention every slot receives while decoding, and hides the lowest but the last `room` (H2O's shape).
class Heavy final : public Policy {
 public:
  explicit Heavy(int32_t room) : room_(room) {}
  std::string name() const override { return "heavy"; }
  int32_t n_planes() const override { return 1; }
  bool wants_scores() const override { return true; }
  bool has_rule() const override { return true; }
  void on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const override {
    const int64_t group = scores.logits.rows() / slots.n_kv_heads(layer);
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      const std::span<float> sums = slots.plane(layer, head, 0);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        const float lse = scores.lse.as<float>()[h];
        for (size_t j = 0; j < sums.size(); ++j) sums[j] += std::exp(scores.logits.row<float>(h)[j] - lse);
      }
    }
  }
  void on_step(const StepInfo& step, PolicySlots& slots) const override {
    if (step.in_prompt) return;
    for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
        const std::span<const float> bias = slots.bias(layer, head), sums = slots.plane(layer, head, 0);
        int32_t n_visible = 0, lowest = -1;
        for (size_t j = 0; j + 1 < sums.size(); ++j) {
          if (!bias.empty() && !std::isfinite(bias[j])) continue;
          ++n_visible;
          if (lowest < 0 || sums[j] < sums[static_cast<size_t>(lowest)]) lowest = static_cast<int32_t>(j);
        }
        if (n_visible >= room_) slots.hide(layer, head, lowest);
      }
    }
  }

 private:
  int32_t room_;
};

TEST(DecodeRule, ScoresAddUpToTheQueriesAndSlotsAreFreedByThePage) {
  const std::unique_ptr<Engine> engine = make_engine(2);
  const auto s = engine->new_sequence(engine->prepare_tokens(random_tokens(100)), std::make_shared<Heavy>(100));
  compute(*engine, *s, 512);
  for (int i = 0; i < 200; ++i) {
    s->add_token(i % kVocab);
    compute(*engine, *s, 1);
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        ASSERT_EQ(s->n_visible(layer, head), 100);
        ASSERT_LT(s->cache().n_hidden(layer, head), 64);
        ASSERT_TRUE(std::ranges::is_sorted(s->cache().slot_places(layer, head)));
      }
    }
  }
  EXPECT_LE(s->cache().n_pages(), 2 * kKvHeads * 3);  // of 300 tokens, which would be 5 pages a head
}

class FailOnce final : public LayerHooks {
 public:
  int layer = 0;
  bool armed = false;
  bool after_attention(int l, const Observed&, std::vector<int32_t>&) override {
    if (armed && l == layer) throw Error(ErrorCode::kIo, "injected");
    return false;
  }
};

// A step that fails after some layers has added its scores there already; repeated, it must not add them twice.
TEST(DecodeRule, RepeatedStepAddsItsScoresOnce) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const auto policy = std::make_shared<Heavy>(1000);
  const auto a = engine->new_sequence(engine->prepare_tokens(random_tokens(70)), policy);
  const auto b = engine->new_sequence(engine->prepare_tokens(random_tokens(70)), policy);
  FailOnce fail;
  for (Sequence* s : {a.get(), b.get()}) compute(*engine, *s, 512);
  for (int i = 0; i < 3; ++i) {
    a->add_token(i);
    b->add_token(i);
    compute(*engine, *a, 1);
    fail.armed = true;
    for (fail.layer = 2; fail.layer >= 0; --fail.layer) EXPECT_THROW(step(*engine, *b, 1, &fail), StepFailed);
    fail.armed = false;
    compute(*engine, *b, 1, &fail);
  }
  for (int32_t layer = 0; layer < 3; ++layer) {
    const std::span<const float> x = a->cache().plane(layer, 1, 0), y = b->cache().plane(layer, 1, 0);
    expect_close({y.begin(), y.end()}, {x.begin(), x.end()});
    float sum = 0;
    for (const float v : x) sum += v;
    EXPECT_NEAR(sum, 3.0f * kHeads / kKvHeads, 1e-4f);
  }
}

// The same for a prompt whose steps fail and are repeated with more rows: it keeps what it would have kept.
TEST(FailedPrefill, CountsItsRowsOnce) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  for (const char* policy :
       {"h2o", "snapkv", "am:ridge=1", "expected_attention", "kvzip+uniform", "am:on=replay,ridge=1"}) {
    const auto a = engine->new_sequence(engine->prepare_tokens(random_tokens(150)), parse_policy(policy, "0.3"));
    const auto b = engine->new_sequence(engine->prepare_tokens(random_tokens(150)), parse_policy(policy, "0.3"));
    compute(*engine, *a, 64);
    FailOnce fail;
    fail.layer = 2;
    while (b->n_pending() > 0) {
      fail.armed = true;
      EXPECT_THROW(step(*engine, *b, 40, &fail), StepFailed);
      EXPECT_THROW(step(*engine, *b, 64, &fail), StepFailed);
      fail.armed = false;
      step(*engine, *b, 64, &fail);
    }
    int n_common = 0;
    for (int32_t i = 0; i < 3 * kKvHeads; ++i) {
      std::vector<int32_t> common;
      std::ranges::set_intersection(a->cache().slot_tokens(i / kKvHeads, i % kKvHeads),
                                    b->cache().slot_tokens(i / kKvHeads, i % kKvHeads), std::back_inserter(common));
      n_common += static_cast<int>(common.size());
    }
    EXPECT_GE(n_common, 3 * kKvHeads * 45 - 2) << policy;
  }
}

// A draft of the answer is seen by the policy and discarded: the first token is the full cache's, what stays differs
// from a plan without it, and its attention is what a prompt that had ended with those tokens would have shown.
TEST(Draft, IsSeenByThePolicyAndDiscarded) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const auto answer = [&](Sequence& s, const Prompt& prompt, int32_t n) {
    Request request;
    request.prompt.tokens = prompt.tokens;
    request.sequence = &s;
    request.options.max_tokens = n;
    request.options.ignore_eos = true;
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : generate(*engine, std::move(request)).tokens) ids.push_back(token.id);
    return ids;
  };
  const Prompt prompt = engine->prepare_tokens(random_tokens(150));
  const auto full = engine->new_sequence(prompt, parse_policy("full"));
  const std::vector<int32_t> draft = answer(*full, prompt, 9);

  const auto ahead = engine->new_sequence(prompt, parse_policy("snapkv:w=20,ahead=8,k=1", "0.2"));
  EXPECT_EQ(answer(*ahead, prompt, 1), std::vector<int32_t>{draft[0]});
  EXPECT_EQ(ahead->n_tokens(), 150);
  EXPECT_EQ(ahead->cache().n_slots(0, 0), 30);

  // The same statistics by hand: the 28 last rows of the longer prompt, on slots of the shorter one.
  std::vector<int32_t> longer = prompt.tokens;
  longer.insert(longer.end(), draft.begin(), draft.begin() + 8);
  class Watch final : public Policy {
   public:
    explicit Watch(std::vector<std::vector<float>>& sums) : sums_(sums) {}
    std::string name() const override { return "watch"; }
    std::vector<CaptureRequest> needs(const PromptShape&) const override {
      return {{.window = 28, .window_sums = true}};
    }
    bool plan(const PlanInputs& in, KeepPlan&) const override {
      for (const LayerCapture& layer : in.captures[0]->layers) {
        for (int32_t h = 0; h < kKvHeads; ++h) {
          const float* row = layer.window_sums.row<float>(h);
          sums_.emplace_back(row, row + 150);
        }
      }
      return false;
    }

   private:
    std::vector<std::vector<float>>& sums_;
  };
  std::vector<std::vector<float>> sums;
  const auto watched = engine->new_sequence(engine->prepare_tokens(longer), std::make_shared<Watch>(sums));
  compute(*engine, *watched, 64);
  int n_differ = 0;
  for (int32_t i = 0; i < 3 * kKvHeads; ++i) {
    const std::vector<int32_t> expected = select_slots(sums[static_cast<size_t>(i)], 30, {.n_last = 3});
    const std::span<const int32_t> kept = ahead->cache().slot_tokens(i / kKvHeads, i % kKvHeads);
    std::vector<int32_t> both;
    std::ranges::set_intersection(expected, kept, std::back_inserter(both));
    n_differ += 30 - static_cast<int>(both.size());
  }
  EXPECT_LE(n_differ, 3);  // of 180: decoded rows round otherwise
}

TEST(Draft, EndsWithTheAnswerAndNeverOutgrowsTheContext) {
  constexpr int32_t kPositions = 100;
  const std::unique_ptr<Engine> engine = make_engine(1, "auto", 64 << 20, "llama", kPositions);
  for (const int32_t n : {83, 84, 98, 99}) {
    const auto s =
        engine->new_sequence(engine->prepare_tokens(random_tokens(n)), parse_policy("pointer:ahead=16", "0.1"));
    Request request;
    request.sequence = s.get();
    request.options.max_tokens = 1;
    EXPECT_EQ(generate(*engine, std::move(request)).tokens.size(), 1u);
    EXPECT_EQ(s->cache().n_slots(0, 0), slots_of(0.1, n));
  }
}

// Notes the largest attention of the last `window` rows to each slot.
class WatchMax final : public Policy {
 public:
  WatchMax(int32_t window, std::vector<std::vector<float>>& max) : window_(window), max_(max) {}
  std::string name() const override { return "watch"; }
  std::vector<CaptureRequest> needs(const PromptShape&) const override {
    return {{.reduce = CaptureRequest::Reduce::kMax, .window = window_, .window_max = true}};
  }
  bool plan(const PlanInputs& in, KeepPlan&) const override {
    for (const LayerCapture& layer : in.captures[0]->layers) {
      for (int32_t h = 0; h < kKvHeads; ++h) {
        const float* row = layer.window_max.row<float>(h);
        max_.emplace_back(row, row + layer.window_max.dim(1));
      }
    }
    return false;
  }

 private:
  int32_t window_;
  std::vector<std::vector<float>>& max_;
};

// A prompt repeated by hand: the same tokens once more after it, which a policy captures.
TEST(Replay, IsSeenByThePolicyAndDiscarded) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  std::vector<int32_t> longer = random_tokens(150);
  const auto s = make_sequence(*engine, longer, "kvzip+uniform", "0.2");
  compute(*engine, *s, 64);
  EXPECT_EQ(s->n_tokens(), 150);
  EXPECT_EQ(s->next_position(), 150);

  for (size_t i = 4; i < 150; ++i) longer.push_back(longer[i]);
  std::vector<std::vector<float>> max;
  const auto watched = engine->new_sequence(engine->prepare_tokens(longer), std::make_shared<WatchMax>(146, max));
  compute(*engine, *watched, 64);
  int n_differ = 0;
  for (int32_t i = 0; i < 3 * kKvHeads; ++i) {
    const std::span<const float> of_prompt = std::span(max[static_cast<size_t>(i)]).first(150);
    const std::vector<int32_t> expected = select_slots(of_prompt, 30, {.n_first = 4, .n_last = 3});
    const std::span<const int32_t> kept = s->cache().slot_tokens(i / kKvHeads, i % kKvHeads);
    std::vector<int32_t> both;
    std::ranges::set_intersection(expected, kept, std::back_inserter(both));
    n_differ += 30 - static_cast<int>(both.size());
  }
  EXPECT_LE(n_differ, 1);  // of 180: chunks round otherwise
}

// The queries of the replay that are kept: as many as requested, evenly spread, each of the token it repeats.
TEST(Replay, KeepsQueriesOfEvenlySpreadTokens) {
  const std::unique_ptr<Engine> engine = make_engine(2);
  class Watch final : public Policy {
   public:
    Watch(int32_t piece, std::vector<int32_t>& positions, std::vector<float>& queries)
        : piece_(piece), positions_(positions), queries_(queries) {}
    std::string name() const override { return "watch"; }
    std::vector<CaptureRequest> needs(const PromptShape&) const override {
      return {{.reduce = CaptureRequest::Reduce::kMax,
               .window = 10,
               .window_queries = true,
               .window_max = true,
               .replay = {.piece = piece_}}};
    }
    bool plan(const PlanInputs& in, KeepPlan&) const override {
      const LayerCapture& layer = in.captures[0]->layers[1];
      positions_ = layer.window_places;
      queries_.assign(layer.window_queries.as<float>(),
                      layer.window_queries.as<float>() + layer.window_queries.numel());
      return false;
    }

   private:
    int32_t piece_;
    std::vector<int32_t>& positions_;
    std::vector<float>& queries_;
  };
  std::vector<int32_t> positions, positions2;
  std::vector<float> queries, queries2;
  const Prompt prompt = engine->prepare_tokens(random_tokens(100));
  const auto a = engine->new_sequence(prompt, std::make_shared<Watch>(2048, positions, queries));
  compute(*engine, *a, 512);
  std::vector<int32_t> expected;
  for (int32_t i = 0; i < 10; ++i) expected.push_back(100 + 10 * i + 9);
  EXPECT_EQ(positions, expected);
  const auto b = engine->new_sequence(prompt, std::make_shared<Watch>(2048, positions2, queries2));
  compute(*engine, *b, 7);
  EXPECT_EQ(positions2, expected);
  expect_close(queries2, queries);
  // Of a second piece after the 8 tokens that lead to it: 60, .. lie at 100 + 8, ...
  const auto c = engine->new_sequence(prompt, std::make_shared<Watch>(60, positions2, queries2));
  compute(*engine, *c, 32);
  for (size_t i = 6; i < 10; ++i) expected[i] += 8 - 60;
  EXPECT_EQ(positions2, expected);
}

// In a batch, beside requests with other lookahead or none; and in a pool that makes the newest request wait.
TEST(Replay, LeavesNoTraceInABatch) {
  const std::unique_ptr<Engine> engine = make_engine(2);
  const auto answers = [&](const std::vector<std::pair<const char*, const char*>>& policies) {
    std::vector<Request> requests;
    for (size_t i = 0; i < policies.size(); ++i) {
      Request& request = requests.emplace_back();
      request.prompt = engine->prepare_tokens(random_tokens(90 + 20 * static_cast<int32_t>(i), 3));
      request.policy = parse_policy(policies[i].first, policies[i].second);
      request.options.max_tokens = 6;
      request.options.ignore_eos = true;
    }
    std::vector<std::vector<int32_t>> all;
    for (const GenerateResult& result : generate(*engine, std::move(requests))) {
      EXPECT_FALSE(result.error) << result.error->what();
      std::vector<int32_t>& ids = all.emplace_back();
      for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
    }
    return all;
  };
  const auto full = answers({{"full", ""}, {"full", ""}, {"full", ""}, {"full", ""}});
  EXPECT_EQ(answers({{"kvzip:piece=32", "1"}, {"kvzip", "1"}, {"full", ""}, {"pointer:ahead=5", "1"}}), full);
  const auto cut = answers({{"kvzip:piece=32", "0.1"}, {"kvzip", "0.1"}, {"full", ""}, {"pointer:ahead=5", "0.1"}});
  EXPECT_EQ(cut[2], full[2]);
  for (size_t i = 0; i < cut.size(); ++i) EXPECT_EQ(cut[i][0], full[i][0]);  // of the full cache's logits
}

TEST(Replay, StaysInTheContextOrReportsTheReason) {
  constexpr int32_t kPositions = 200;
  const std::unique_ptr<Engine> engine = make_engine(1, "auto", 64 << 20, "llama", kPositions);
  class Positions final : public LayerHooks {
   public:
    int32_t largest = 0;
    bool after_attention(int, const Observed& observed, std::vector<int32_t>&) override {
      largest = std::max(largest, observed.positions.back().largest());
      return false;
    }
  };
  // 4 sinks are not repeated. After 128 tokens there is room for pieces of 64 and the 8 tokens that lead to a later
  // one: of the 124, 64 and then 8 + 60 are repeated.
  for (const auto& [n, largest] : {std::pair{2, 1}, std::pair{5, 5}, std::pair{96, 187}, std::pair{128, 195}}) {
    Positions positions;
    const auto s = make_sequence(*engine, random_tokens(n), "kvzip", "0.5");
    compute(*engine, *s, 512, &positions);
    EXPECT_EQ(positions.largest, largest) << n;
  }
  const auto s = make_sequence(*engine, random_tokens(129), "kvzip", "0.5");
  try {
    compute(*engine, *s, 512);
    ADD_FAILURE() << "129 tokens leave 63 of 200 after them and the 8 of an instruction";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "KV policy kvzip+global repeats the prompt after itself; one of 129 tokens leaves no room "
                 "for that in the model's context of 200");
  }
}

}  // namespace
}  // namespace vlcache
