// Policies that act after the answer's first tokens (Policy::acts_after_tokens): those equal the full cache's, stay in
// the cache, and are what a draft would have been.
#include <array>
#include <numeric>

#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

constexpr int32_t kFirst = 8;  // tokens of the answer before the policy acts
constexpr const char* kDrafts = "pointer:reach=1,ahead=8,own=0.8,fit=0.3,question=0.1+global";
constexpr const char* kEmits = "pointer:reach=1,ahead=8,emit=1,own=0.8,fit=0.3,question=0.1+global";
constexpr const char* kBudget = "0.2";

Request ask(const Engine& engine, int32_t n_answer, const char* policy = kEmits, int32_t n_prompt = 150,
            uint32_t seed = 7) {
  Request request;
  request.prompt = engine.prepare_tokens(random_tokens(n_prompt, seed));
  request.policy = parse_policy(policy, policy == std::string_view("full") ? "" : kBudget);
  request.options.max_tokens = n_answer;
  request.options.ignore_eos = true;
  return request;
}

GenerateResult answer(Engine& engine, int32_t n_answer, const char* policy, const SamplingParams& sampling = {}) {
  Request request = ask(engine, n_answer, policy);
  request.options.sampling = sampling;
  return generate(engine, std::move(request));
}

void expect_same_tokens(const GenerateResult& a, const GenerateResult& b, size_t n) {
  ASSERT_GE(a.tokens.size(), n);
  ASSERT_GE(b.tokens.size(), n);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(a.tokens[i].id, b.tokens[i].id) << i;
    EXPECT_EQ(a.tokens[i].logprob, b.tokens[i].logprob) << i;
    ASSERT_EQ(a.tokens[i].top.size(), b.tokens[i].top.size());
    for (size_t j = 0; j < a.tokens[i].top.size(); ++j) {
      EXPECT_EQ(a.tokens[i].top[j].token, b.tokens[i].top[j].token);
      EXPECT_EQ(a.tokens[i].top[j].logprob, b.tokens[i].top[j].logprob);
    }
  }
}

int32_t all_slots(const GenerateResult& result) {
  int32_t n = 0;
  for (const std::vector<int32_t>& layer : result.kv.slots) n = std::accumulate(layer.begin(), layer.end(), n);
  return n;
}

const std::vector<SamplingParams>& samplers() {
  static const std::vector<SamplingParams> all{
      {.n_logprobs = 3},
      {.temperature = 0.8f, .seed = 1, .n_logprobs = 2},
      {.temperature = 1.3f, .top_k = 7, .top_p = 0.9f, .seed = 2, .n_logprobs = 0},
      {.temperature = 0.5f, .min_p = 0.05f, .repetition_penalty = 1.3f, .frequency_penalty = 0.4f, .seed = 3},
      {.presence_penalty = 1.5f, .biases = {{5, 2.0f}}, .n_logprobs = 1}};
  return all;
}

TEST(AnswerFirst, ShortAnswersAreTheFullCaches) {
  const auto engine = make_engine(2);
  for (const SamplingParams& sampling : samplers()) {
    for (const int32_t n : {1, 2, kFirst, kFirst + 1}) {
      const GenerateResult full = answer(*engine, n, "full", sampling), own = answer(*engine, n, kEmits, sampling);
      ASSERT_EQ(own.tokens.size(), full.tokens.size());
      expect_same_tokens(own, full, full.tokens.size());
      EXPECT_EQ(own.kv.n_before_acting, n == kFirst + 1 ? kFirst : -1);
      EXPECT_EQ(own.timings.gap_ms > 0, n == kFirst + 1);
    }
  }
}

TEST(AnswerFirst, LongerOnesAreCompressedAfterThatMany) {
  const auto engine = make_engine(2);
  for (const SamplingParams& sampling : samplers()) {
    const GenerateResult full = answer(*engine, 30, "full", sampling), own = answer(*engine, 30, kEmits, sampling);
    ASSERT_EQ(own.tokens.size(), 30u);
    expect_same_tokens(own, full, kFirst + 1);
    EXPECT_EQ(own.kv.n_before_acting, kFirst);
    EXPECT_GT(own.timings.compress_ms, 0);
    EXPECT_EQ(all_slots(own), (30 + 29) * 2 * kKvHeads);  // the budget, and all of the answer
  }
  EXPECT_EQ(engine->pools().used_bytes(), 0);
}

// What is kept of the prompt, and how it is corrected, is what a discarded draft of the same tokens would have chosen.
TEST(AnswerFirst, PlansAsAfterADraft) {
  const auto engine = make_engine(3);
  const Prompt prompt = engine->prepare_tokens(random_tokens(150));
  const auto run = [&](const char* policy, int32_t n) {
    auto sequence = engine->new_sequence(prompt, parse_policy(policy, kBudget));
    Request request = ask(*engine, n, policy);
    request.sequence = sequence.get();
    generate(*engine, std::move(request));
    return sequence;
  };
  const auto drafted = run(kDrafts, 1), emitted = run(kEmits, kFirst + 1);
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const auto expected = drafted->cache().slot_tokens(layer, head), kept = emitted->cache().slot_tokens(layer, head);
      ASSERT_EQ(kept.size(), expected.size() + kFirst);
      EXPECT_TRUE(std::ranges::equal(kept.first(expected.size()), expected));
      for (int32_t i = 0; i < kFirst; ++i) EXPECT_EQ(kept[expected.size() + static_cast<size_t>(i)], 150 + i);
      const auto n = static_cast<int64_t>(expected.size());
      std::vector<float> a(static_cast<size_t>(n * kHeadDim)), b(a.size());
      drafted->cache().read(layer, head, {}, Tensor(a.data(), DType::kF32, {n, kHeadDim}));
      emitted->cache().read(layer, head, {}, Tensor(b.data(), DType::kF32, {n, kHeadDim}));
      EXPECT_EQ(a, b);
      const std::span<const float> bias = drafted->slots().bias(layer, head), own = emitted->slots().bias(layer, head);
      ASSERT_EQ(own.empty(), bias.empty());  // none: all 0
      if (own.empty()) continue;
      EXPECT_TRUE(std::ranges::equal(own.first(bias.size()), bias));
      for (const float x : own.subspan(bias.size())) EXPECT_EQ(x, 0);
    }
  }
}

// A sequence that goes on is compressed when its answer ends, after however many tokens.
TEST(AnswerFirst, TurnsEndCompressed) {
  const auto engine = make_engine(2);
  for (const int32_t n : {0, 1, 4, 20}) {
    std::vector<int32_t> ids = random_tokens(150);
    const auto sequence = engine->new_sequence(engine->prepare_tokens(ids), parse_policy(kEmits, kBudget));
    for (int turn = 0; turn < 2; ++turn) {
      const auto n_before = static_cast<int32_t>(ids.size());
      Request request;
      request.prompt = engine->prepare_tokens(ids);
      request.sequence = sequence.get();
      request.options.max_tokens = n;
      request.options.ignore_eos = true;
      const GenerateResult result = generate(*engine, std::move(request));
      EXPECT_EQ(std::ssize(result.tokens), n);
      EXPECT_EQ(n_slots(kept_tokens(*sequence)), int64_t{slots_of(0.2, n_before) + std::max(0, n - 1)} * 2 * kKvHeads);
      for (const int32_t id : ids_of(result)) ids.push_back(id);
      for (const int32_t id : random_tokens(40, 3)) ids.push_back(id);
      const int32_t n_kept = sequence->continue_with(engine->prepare_tokens(ids));
      EXPECT_EQ(n_kept, n_before + std::max(0, n - 1));
    }
  }
}

TEST(AnswerFirst, ACancelledTurnIsCompressedToo) {
  const auto engine = make_engine(2);
  const auto sequence = engine->new_sequence(engine->prepare_tokens(random_tokens(150)), parse_policy(kEmits, kBudget));
  Scheduler scheduler(*engine);
  Request request = ask(*engine, 20);
  request.sequence = sequence.get();
  const RequestId id = scheduler.add(std::move(request));
  for (int i = 0; i < 4; ++i) scheduler.step();
  scheduler.cancel(id);
  EXPECT_EQ(scheduler.remove(id).tokens.size(), 4u);
  EXPECT_EQ(n_slots(kept_tokens(*sequence)), int64_t{30 + 3} * 2 * kKvHeads);
}

// What a policy that acts after kFirst tokens of the answer sees.
class Seen final : public Policy {
 public:
  std::string name() const override { return "seen"; }
  int32_t acts_after_tokens() const override { return kFirst; }
  std::vector<CaptureRequest> needs(const PromptShape&) const override {
    return {{.reduce = CaptureRequest::Reduce::kMax,
             .window = 20,
             .ahead = kFirst,
             .window_queries = true,
             .window_max = true}};
  }
  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    values = {};
    positions = {};
    for (const LayerCapture& layer : in.captures[0]->layers) {
      plan.layers.emplace_back(kKvHeads);
      positions.insert(positions.end(), layer.window_places.begin(), layer.window_places.end());
      for (const Tensor& t : {layer.window_max, layer.window_queries}) {
        const auto* const x = t.as<float>();
        values.insert(values.end(), x, x + t.numel());
      }
    }
    for (auto& layer : plan.layers) {
      for (KeepPlan::Head& head : layer) head.keep = {3, 149};
    }
    return true;
  }
  mutable std::vector<float> values;
  mutable std::vector<int32_t> positions;
};

// Preempted before, while and after the policy acts: the answer's own tokens are computed again, and the plan is made
// from the same queries.
TEST(AnswerFirst, APreemptedRequestActsOnTheSameTokens) {
  const auto engine = make_engine(2);
  const auto run = [&](const std::shared_ptr<Seen>& seen, int n_steps) {
    Scheduler scheduler(*engine, {.max_running = 1});
    Request request = ask(*engine, 12);
    request.policy = seen;
    request.callbacks.choose = [n = 0](std::span<float>) mutable { return n++; };
    const RequestId first = scheduler.add(std::move(request));
    for (int i = 0; i < n_steps; ++i) scheduler.step();
    if (n_steps > 0) {
      Request urgent = ask(*engine, 3, "full", 40, 3);
      urgent.priority = 1;
      const RequestId second = scheduler.add(std::move(urgent));
      while (!scheduler.done(second)) scheduler.step();
      EXPECT_FALSE(scheduler.done(first));
    }
    while (scheduler.step()) {
    }
    return scheduler.remove(first);
  };
  const auto expected = std::make_shared<Seen>();
  const GenerateResult all = run(expected, 0);
  EXPECT_EQ(expected->positions.size(), 2u * (20 + kFirst));
  for (const int n_steps : {1, 3, kFirst, kFirst + 1, kFirst + 2, 11}) {
    const auto seen = std::make_shared<Seen>();
    const GenerateResult result = run(seen, n_steps);
    EXPECT_EQ(ids_of(result), ids_of(all)) << n_steps;
    EXPECT_EQ(result.kv.n_before_acting, kFirst);
    EXPECT_EQ(result.kv.slots, all.kv.slots);
    EXPECT_EQ(seen->positions, expected->positions);
    expect_close(seen->values, expected->values, 1e-4f);
  }
}

// While policies act, every step still computes a token of each other request.
TEST(AnswerFirst, OtherRequestsLoseNoStep) {
  constexpr int32_t kLayers = 6;
  const auto engine = make_engine(kLayers);
  const std::vector<int32_t> full = ids_of(generate(*engine, ask(*engine, 150, "full", 90, 2)));
  Scheduler scheduler(*engine);
  int n_other = 0;
  Request other = ask(*engine, 150, "full", 90, 2);
  other.callbacks.on_token = [&](const GeneratedToken&) { ++n_other; };
  const RequestId beside = scheduler.add(std::move(other));
  scheduler.step();
  std::array<int, 2> n_own{};
  std::vector<RequestId> ids;
  for (size_t i = 0; i < 2; ++i) {
    Request request = ask(*engine, 20, kEmits, 150, static_cast<uint32_t>(i));
    request.callbacks.on_token = [&n = n_own[i]](const GeneratedToken&) { ++n; };
    ids.push_back(scheduler.add(std::move(request)));
  }
  int n_steps_of_acting = 0;
  while (!scheduler.done(ids[0]) || !scheduler.done(ids[1])) {
    const int before = n_other;
    const std::array<int, 2> own_before = n_own;
    ASSERT_TRUE(scheduler.step());
    EXPECT_EQ(n_other, before + 1);
    for (size_t i = 0; i < 2; ++i) n_steps_of_acting += own_before[i] == kFirst && n_own[i] == kFirst ? 1 : 0;
  }
  EXPECT_GT(n_steps_of_acting, 0);  // the plan was made in parts
  while (scheduler.step()) {
  }
  EXPECT_EQ(ids_of(scheduler.remove(beside)), full);
  for (size_t i = 0; i < 2; ++i) {
    const GenerateResult alone = generate(*engine, ask(*engine, 20, kEmits, 150, static_cast<uint32_t>(i)));
    EXPECT_EQ(ids_of(scheduler.remove(ids[i])), ids_of(alone));
  }
  EXPECT_EQ(engine->pools().used_bytes(), 0);
}

// Ended at any step, also while its policy acts.
TEST(AnswerFirst, CancellingLosesNoPages) {
  const auto engine = make_engine(6);
  for (int n_steps = 1; n_steps < 20; n_steps += only_ref() ? 3 : 1) {
    Scheduler scheduler(*engine);
    const RequestId first = scheduler.add(ask(*engine, 30)), beside = scheduler.add(ask(*engine, 40, "full", 90, 2));
    for (int i = 0; i < n_steps; ++i) scheduler.step();
    scheduler.cancel(first);
    while (scheduler.step()) {
    }
    scheduler.remove(first);
    EXPECT_EQ(scheduler.remove(beside).tokens.size(), 40u);
    EXPECT_EQ(engine->pools().used_bytes(), 0);
  }
}

TEST(AnswerFirst, StopTokensAndConstraintsEndItEarly) {
  class Only final : public TokenConstraint {
   public:
    bool mask(std::span<float> logits, std::span<const int32_t>) override {
      for (size_t i = 0; i < logits.size(); ++i) {
        if (i != static_cast<size_t>(n_taken_) + 3) logits[i] = -INFINITY;
      }
      return true;
    }
    void take(int32_t) override { ++n_taken_; }
    bool complete() const override { return n_taken_ == 20; }

   private:
    int32_t n_taken_ = 0;
  };
  const auto engine = make_engine(2);
  const std::vector<int32_t> all = ids_of(answer(*engine, 30, "full"));
  const size_t at = static_cast<size_t>(std::ranges::find(all, all[4]) - all.begin());
  Request stopped = ask(*engine, 30), constrained = ask(*engine, 30);
  stopped.options.ignore_eos = false;
  stopped.options.stop_tokens = {all[4]};
  const GenerateResult short_one = generate(*engine, std::move(stopped));
  EXPECT_EQ(ids_of(short_one), std::vector<int32_t>(all.begin(), all.begin() + static_cast<int64_t>(at) + 1));
  EXPECT_EQ(short_one.finish_reason, FinishReason::kStop);
  EXPECT_EQ(short_one.kv.n_before_acting, -1);
  EXPECT_EQ(short_one.kv.acts_after_tokens, kFirst);
  constrained.constraint = std::make_unique<Only>();
  const GenerateResult counted = generate(*engine, std::move(constrained));
  ASSERT_EQ(counted.tokens.size(), 20u);
  for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(counted.tokens[static_cast<size_t>(i)].id, i + 3);
  EXPECT_EQ(counted.kv.n_before_acting, kFirst);
}

// Answers to one prompt, each with tokens of its own before its policy acts.
TEST(AnswerFirst, EveryAnswerEmitsItsOwn) {
  const auto engine = make_engine(2, "auto", 64 << 20, "llama", 4096, 8 << 20);
  for (const bool keeps_exact : {false, true}) {
    std::vector<Request> requests;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Request& request = requests.emplace_back(ask(*engine, 20));
      request.options.sampling = {.temperature = 1.0f, .seed = seed};
      request.reuse = {.prefix = true, .keep_exact = keeps_exact};
    }
    const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const GenerateResult full = answer(*engine, 20, "full", {.temperature = 1.0f, .seed = seed});
      for (size_t i = 0; i <= size_t{kFirst}; ++i)
        EXPECT_EQ(results[seed].tokens[i].id, full.tokens[i].id) << seed << " " << i;
    }
    expect_no_page_lost(*engine);
  }
}

// The prompt's KV is cached for others only on request, or if the answer ended before it was compressed.
TEST(AnswerFirst, CachesWhatStaysExact) {
  const auto cached = [](int32_t n_answer, bool keep_exact) {
    const auto engine = make_engine(2, "auto", 64 << 20, "llama", 4096, 8 << 20);
    Request request = ask(*engine, n_answer);
    request.reuse = {.prefix = true, .keep_exact = keep_exact};
    generate(*engine, std::move(request));
    const int64_t n = engine->caches().usual().prefixes().bytes() / engine->caches().usual().prefixes().group_bytes();
    expect_no_page_lost(*engine);
    return n;
  };
  EXPECT_EQ(cached(20, false), 0);
  EXPECT_EQ(cached(20, true), 2);  // whole pages of 150 tokens
  EXPECT_GE(cached(kFirst, false), 2);
}

// Where the policy acts before the question, or in the middle of the prompt, no answer follows there.
TEST(AnswerFirst, EarlierPartsOfAPromptAreNotAwaited) {
  const auto engine = make_engine(2);
  Prompt unaware = with_image(*engine);
  unaware.query_aware = false;
  const auto before = engine->new_sequence(unaware, parse_policy(kEmits, kBudget));
  compute(*engine, *before, 64);
  EXPECT_FALSE(before->acts_later());
  EXPECT_EQ(n_slots(kept_tokens(*before)), (20 + 50) * 2 * kKvHeads);
  Request in_parts = ask(*engine, 20, kEmits, 300);
  in_parts.prompt.evict_every = 64;
  const GenerateResult result = generate(*engine, std::move(in_parts));
  EXPECT_EQ(result.kv.n_before_acting, kFirst);
  EXPECT_EQ(all_slots(result), (60 + 19) * 2 * kKvHeads);
}

// A rule that keeps the number of slots counts from the policy's act on, without the answer's first tokens.
TEST(AnswerFirst, ARuleKeepsTheBudgetOfThePrompt) {
  const auto engine = make_engine(2);
  const std::string policy = std::string(kEmits) + "/h2o";
  const GenerateResult result = answer(*engine, 40, policy.c_str());
  EXPECT_EQ(result.tokens.size(), 40u);
  EXPECT_EQ(all_slots(result), 30 * 2 * kKvHeads);
  expect_same_tokens(result, answer(*engine, 40, "full"), kFirst + 1);
}

}  // namespace
}  // namespace vlcache
