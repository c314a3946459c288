// Several requests in one batch against each alone: on the model that ships, equal tokens in f32 and logits within
// rounding in bf16; on random models, which requests wait and which fail.
#include "engine/scheduler/scheduler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "engine/scheduler/accounting_testing.h"

namespace vlcache {
namespace {

constexpr double kBf16Tolerance = 1.0 / 64;  // of the largest logit: a few roundings of 2^-9 along different paths

std::unique_ptr<Engine> load(DType dtype) {
  EngineOptions options;
  options.dtype = dtype;
  options.kv_memory_bytes = 256 << 20;
  return Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/models/tinydoc"), options);
}

const std::vector<std::string> kTexts{
    "<s>User: What is the TOTAL?\nAssistant:", "<s>User: Read the page.\nAssistant: INVOICE 12", "<s>A",
    "<s>User: How many red shapes?\nAssistant: 3 and a long tail of words to read"};

Request make_request(Engine& engine, const std::string& text, int32_t max_tokens, std::string_view policy = "full") {
  Request request;
  request.prompt = engine.prepare_raw(text, {});
  request.policy = parse_policy(policy);
  request.options.max_tokens = max_tokens;
  request.options.ignore_eos = true;
  return request;
}

std::vector<GenerateResult> generate_batch(Engine& engine, const std::vector<std::string>& texts, int32_t max_tokens) {
  std::vector<Request> requests;
  for (const std::string& text : texts) requests.push_back(make_request(engine, text, max_tokens));
  return generate(engine, std::move(requests));
}

TEST(Scheduler, F32BatchGivesTheTokensOfEachRequestAlone) {
  const std::unique_ptr<Engine> engine = load(DType::kF32);
  const size_t n = only_ref() ? 6 : 24;
  const std::vector<GenerateResult> together = generate_batch(*engine, kTexts, static_cast<int32_t>(n));
  for (size_t i = 0; i < kTexts.size(); ++i) {
    const GenerateResult alone = generate_batch(*engine, {kTexts[i]}, static_cast<int32_t>(n))[0];
    EXPECT_EQ(together[i].text, alone.text);
    ASSERT_EQ(together[i].tokens.size(), n);
    for (size_t t = 0; t < n; ++t) EXPECT_EQ(together[i].tokens[t].id, alone.tokens[t].id);
  }
}

// Logits of the last `n` tokens of each sequence, fed one by one in steps of all sequences; [sequence][step] -> logits.
std::vector<std::vector<std::vector<float>>> teacher_force(Engine& engine,
                                                           const std::vector<std::vector<int32_t>>& tokens, int32_t n) {
  std::vector<std::vector<std::vector<float>>> logits(tokens.size());
  std::vector<Request> requests;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Request& request = requests.emplace_back();
    request.prompt = engine.prepare_tokens({tokens[i].begin(), tokens[i].end() - n});
    request.policy = parse_policy("full");
    request.options.max_tokens = n + 1;
    request.options.ignore_eos = true;
    request.callbacks.choose = [&logits, &tokens, i, n](std::span<float> row) {
      logits[i].emplace_back(row.begin(), row.end());
      const size_t at = tokens[i].size() - static_cast<size_t>(n) + logits[i].size() - 1;
      return at < tokens[i].size() ? tokens[i][at] : 0;
    };
  }
  for (const GenerateResult& result : generate(engine, std::move(requests))) EXPECT_FALSE(result.error);
  return logits;
}

TEST(Scheduler, Bf16LogitsAgreeAndFlipsAreCounted) {
  const std::unique_ptr<Engine> engine = load(DType::kBF16);
  const int32_t n = only_ref() ? 3 : 24;
  std::vector<std::vector<int32_t>> tokens;
  const std::vector<GenerateResult> results = generate_batch(*engine, kTexts, n);
  for (size_t i = 0; i < kTexts.size(); ++i) {
    tokens.push_back(engine->prepare_raw(kTexts[i], {}).tokens);
    for (const GeneratedToken& t : results[i].tokens) tokens.back().push_back(t.id);
  }
  const auto together = teacher_force(*engine, tokens, n);
  int flips = 0, compared = 0;
  double worst = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto alone = teacher_force(*engine, {tokens[i]}, n)[0];
    for (size_t step = 0; step < alone.size(); ++step, ++compared) {
      const std::vector<float>&a = together[i][step], &b = alone[step];
      double largest = 0, error = 0;
      for (size_t v = 0; v < a.size(); ++v) {
        largest = std::max(largest, std::abs(double{b[v]}));
        error = std::max(error, std::abs(double{a[v]} - b[v]));
      }
      worst = std::max(worst, error / largest);
      const auto top_a = std::max_element(a.begin(), a.end()) - a.begin(),
                 top_b = std::max_element(b.begin(), b.end()) - b.begin();
      if (top_a == top_b) continue;
      ++flips;
      EXPECT_LE(b[static_cast<size_t>(top_b)] - b[static_cast<size_t>(top_a)], kBf16Tolerance * largest)
          << "sequence " << i << " step " << step;
    }
  }
  EXPECT_LE(worst, kBf16Tolerance);
  std::printf("bf16, batched against single: %d of %d top tokens differ, logits within %.5f of the largest\n", flips,
              compared, worst);
}

TEST(Generate, CancellingEndsTheAnswerEarly) {
  const std::unique_ptr<Engine> engine = load(DType::kBF16);
  std::string streamed;
  int steps = 0;
  Request request = make_request(*engine, kTexts[3], 100);
  request.callbacks.on_text = [&](std::string_view text) { streamed += text; };
  request.callbacks.cancelled = [&] { return ++steps > 10; };
  const GenerateResult result = generate(*engine, std::move(request));
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_GE(result.tokens.size(), 1u);
  EXPECT_LE(result.tokens.size(), 10u);
  EXPECT_EQ(streamed, result.text);
}

TEST(Generate, RequestCancelledBeforeItsStartComputesNothing) {
  const std::unique_ptr<Engine> engine = load(DType::kBF16);
  Request request = make_request(*engine, kTexts[0], 100);
  const auto sequence = engine->new_sequence(request.prompt, parse_policy("full"));
  request.sequence = sequence.get();
  request.callbacks.cancelled = [] { return true; };
  const GenerateResult result = generate(*engine, std::move(request));
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(sequence->n_done(), 0);
}

// ---- random models: sharing a batch, waiting, failing -------------------------------------------------------------

Request random_request(Engine& engine, int32_t n_prompt, int32_t max_tokens, std::string_view policy = "full",
                       uint32_t seed = 7) {
  Request request;
  request.prompt = engine.prepare_tokens(random_tokens(n_prompt, seed));
  request.policy = parse_policy(policy);
  request.options.max_tokens = max_tokens;
  request.options.ignore_eos = true;
  return request;
}

std::vector<int32_t> alone(Engine& engine, Request request) { return ids_of(generate(engine, std::move(request))); }

TEST(Scheduler, RequestsAreAddedAndRemovedWhileOthersRun) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  Scheduler scheduler(*engine);
  EXPECT_FALSE(scheduler.step());
  const RequestId a = scheduler.add(random_request(*engine, 30, 60));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(scheduler.step());
  const RequestId b = scheduler.add(random_request(*engine, 100, 10, "streaming:sinks=2,window=20", 3));
  const RequestId c = scheduler.add(random_request(*engine, 50, 1000, "full", 4));
  for (int i = 0; i < 30; ++i) scheduler.step();  // 8 rows of a prompt in each, at least
  scheduler.cancel(c);
  const RequestId d = scheduler.add(random_request(*engine, 40, 8, "post_vision+uniform", 5));
  const RequestId e = scheduler.add(random_request(*engine, 10, 1000));
  scheduler.step();
  const GenerateResult taken = scheduler.remove(e);
  EXPECT_EQ(taken.finish_reason, FinishReason::kCancelled);
  while (scheduler.step()) {
  }
  const GenerateResult cancelled = scheduler.remove(c);
  EXPECT_EQ(cancelled.finish_reason, FinishReason::kCancelled);
  EXPECT_GE(cancelled.tokens.size(), 4u);
  EXPECT_EQ(ids_of(scheduler.remove(a)), alone(*engine, random_request(*engine, 30, 60)));
  EXPECT_EQ(ids_of(scheduler.remove(b)),
            alone(*engine, random_request(*engine, 100, 10, "streaming:sinks=2,window=20", 3)));
  EXPECT_EQ(ids_of(scheduler.remove(d)), alone(*engine, random_request(*engine, 40, 8, "post_vision+uniform", 5)));
  EXPECT_EQ(scheduler.size(), 0u);
  EXPECT_EQ(engine->pools().used_bytes(), 0);
}

// A decoding request gets a token in every step, and the pieces of a long prompt beside it are smaller than a chunk.
TEST(Scheduler, LongPromptDelaysOtherRequestsByLessThanAChunk) {
  const std::unique_ptr<Engine> engine = make_engine(1);
  Scheduler scheduler(*engine, {.max_step_ms = 1e-6});
  int tokens = 0;
  Request request = random_request(*engine, 10, 1000);
  request.callbacks.choose = [&](std::span<float>) { return ++tokens % kVocab; };
  scheduler.add(std::move(request));
  scheduler.step();
  std::vector<int32_t> done;
  Request prompt = random_request(*engine, 2000, 1);
  prompt.callbacks.on_prefill = [&](int32_t n, int32_t) { done.push_back(n); };
  const RequestId id = scheduler.add(std::move(prompt));
  int steps = 0;
  for (; !scheduler.done(id); ++steps) {
    const int before = tokens;
    scheduler.step();
    EXPECT_EQ(tokens, before + 1);
  }
  EXPECT_EQ(done.size(), 2000u / 8);  // as few rows as are worth reading the weights for
  // Alone, the prompt is computed in whole chunks again.
  done.clear();
  Scheduler idle(*engine);
  Request again = random_request(*engine, 1100, 1);
  again.callbacks.on_prefill = [&](int32_t n, int32_t) { done.push_back(n); };
  idle.add(std::move(again));
  while (idle.step()) {
  }
  EXPECT_EQ(done, (std::vector<int32_t>{512, 1024, 1100}));
}

// Pages for about one and a half of the requests: they take turns, and every answer equals the one computed alone.
TEST(Scheduler, RequestWithoutPagesWaits) {
  const int64_t page = 64 * 2 * kHeadDim * 4;
  const std::unique_ptr<Engine> small = make_engine(2, "auto", 4 * 6 * page), large = make_engine(2);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 4; ++i)
    requests.push_back(random_request(*small, 190 + static_cast<int32_t>(i), 40, "full", i));
  requests.push_back(random_request(*small, 100, 10, "static:capacity=192", 9));
  requests.push_back(random_request(*small, 10, 5, "static:capacity=100000", 9));  // never fits
  requests.push_back(random_request(*small, 500, 5));                              // nor does this prompt
  std::vector<GenerateResult> results;
  {
    Scheduler scheduler(*small);
    Accounts accounts(*small);
    std::vector<RequestId> added;
    for (Request& request : requests) added.push_back(scheduler.add(std::move(request)));
    while (scheduler.step()) accounts.check(scheduler);
    for (const RequestId id : added) results.push_back(scheduler.remove(id));
    accounts.check_end(scheduler);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(results[i].error);
    EXPECT_EQ(ids_of(results[i]), alone(*large, random_request(*large, 190 + static_cast<int32_t>(i), 40, "full", i)));
  }
  EXPECT_EQ(ids_of(results[4]), alone(*large, random_request(*large, 100, 10, "static:capacity=192", 9)));
  for (const size_t i : {5, 6}) {
    EXPECT_EQ(results[i].finish_reason, FinishReason::kError);
    ASSERT_TRUE(results[i].error.has_value());
    EXPECT_EQ(results[i].error->code(), ErrorCode::kOutOfPages);
  }
  EXPECT_EQ(small->pools().used_bytes(), 0);
}

// An answer that fills the memory is not discarded.
TEST(Scheduler, AnswerEndsWhenMemoryOrCapacityIsFull) {
  const int64_t page = 64 * 2 * kHeadDim * 4;
  const std::unique_ptr<Engine> engine = make_engine(2, "auto", 4 * 2 * page);
  const GenerateResult full = generate(*engine, random_request(*engine, 100, 1000));
  EXPECT_EQ(full.finish_reason, FinishReason::kLength);
  EXPECT_EQ(full.tokens.size(), 128u - 100 + 1);
  const GenerateResult fixed = generate(*engine, random_request(*engine, 100, 1000, "static:capacity=120"));
  EXPECT_EQ(fixed.finish_reason, FinishReason::kLength);
  EXPECT_EQ(fixed.tokens.size(), 120u - 100 + 1);
  EXPECT_THROW(generate(*engine, random_request(*engine, 100, 5, "static:capacity=99")), Error);
}

TEST(Scheduler, UnsupportedRequestDoesNotAffectOtherRequests) {
  class WantsAll final : public Policy {
   public:
    std::string name() const override { return "wants_all"; }
    std::vector<CaptureRequest> needs(const PromptShape&) const override { return {{.all_sums = true}}; }
  };
  const std::unique_ptr<Engine> engine = make_engine(2);
  Scheduler scheduler(*engine);
  const RequestId good = scheduler.add(random_request(*engine, 30, 20));
  scheduler.step();
  Request bad;
  bad.prompt = engine->prepare_tokens(random_tokens(20));
  const auto sequence = engine->new_sequence(engine->prepare_tokens(random_tokens(10)), std::make_shared<WantsAll>());
  compute(*engine, *sequence, 512);
  ASSERT_EQ(sequence->continue_with(bad.prompt), 10);
  bad.sequence = sequence.get();
  const RequestId id = scheduler.add(std::move(bad));
  while (scheduler.step()) {
  }
  const GenerateResult result = scheduler.remove(id);
  ASSERT_TRUE(result.error.has_value());
  EXPECT_EQ(result.error->code(), ErrorCode::kInput);
  EXPECT_EQ(ids_of(scheduler.remove(good)), alone(*engine, random_request(*engine, 30, 20)));
}

TEST(Scheduler, LogitsOfAPromptAreReported) {
  const std::unique_ptr<Engine> engine = make_engine(2);
  std::vector<float> logits(600 * kVocab);
  Request request = random_request(*engine, 600, 0);
  request.callbacks.on_logits = [&](int32_t first, const Tensor& rows) {
    std::copy_n(rows.as<float>(), rows.numel(), logits.begin() + first * kVocab);
  };
  const GenerateResult result = generate(*engine, std::move(request));
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(result.tokens.empty());
  for (const int32_t n : {1, 511, 513, 600}) {
    const std::vector<int32_t> tokens = random_tokens(600);
    const auto prefix = make_sequence(*engine, {tokens.begin(), tokens.begin() + n});
    expect_close({logits.begin() + (n - 1) * kVocab, logits.begin() + n * kVocab}, compute(*engine, *prefix, 512));
  }
}

// A policy with a bug, somewhere.
class Broken final : public Policy {
 public:
  enum class Where { kNeeds, kPlan, kScores, kStep, kLibrary };
  explicit Broken(Where where) : where_(where) {}
  std::string name() const override { return "broken"; }
  std::vector<CaptureRequest> needs(const PromptShape&) const override {
    CHECK(where_ != Where::kNeeds);
    return {};
  }
  bool plan(const PlanInputs& in, KeepPlan& plan) const override {
    if (where_ == Where::kLibrary) throw std::out_of_range("vector::at");
    if (where_ != Where::kPlan) return false;
    plan.layers.resize(static_cast<size_t>(in.slots.n_layers()));  // of no heads: compact() checks that
    return true;
  }
  bool wants_scores() const override { return true; }
  bool has_rule() const override { return true; }
  void on_scores(int32_t, const StepScores& scores, PolicySlots&) const override {
    CHECK(where_ != Where::kScores || scores.n_generated < 3);
  }
  void on_step(const StepInfo& step, PolicySlots& slots) const override {
    if (where_ == Where::kStep && !step.in_prompt) slots.hide(0, 0, -1);
  }

 private:
  Where where_;
};

TEST(Scheduler, FailedCheckEndsOnlyItsRequest) {
  using Where = Broken::Where;
  const std::unique_ptr<Engine> engine = make_engine(2, "auto", 64 << 20, "llama", 4096, 1 << 20);
  const std::vector<int32_t> a = random_tokens(100, 1), b = random_tokens(70, 2);
  const std::vector<int32_t> answer_a = answer_alone(*engine, a), answer_b = answer_alone(*engine, b);
  for (const Where where : {Where::kNeeds, Where::kPlan, Where::kScores, Where::kStep, Where::kLibrary}) {
    Scheduler scheduler(*engine);
    Accounts accounts(*engine);
    const RequestId first = scheduler.add(prefix_request(*engine, a));
    Request bad = prefix_request(*engine, random_tokens(120, 3));
    bad.policy = std::make_shared<Broken>(where);
    const RequestId broken = scheduler.add(std::move(bad)), last = scheduler.add(prefix_request(*engine, b));
    while (scheduler.step()) accounts.check(scheduler);
    const GenerateResult result = scheduler.remove(broken);
    ASSERT_TRUE(result.error) << static_cast<int>(where);
    EXPECT_EQ(result.error->code(), ErrorCode::kBug);
    EXPECT_THAT(result.error->what(), testing::HasSubstr(where == Where::kLibrary ? "vector::at" : "CHECK("));
    EXPECT_EQ(result.tokens.size(), where == Where::kScores ? 3u : 0u);
    EXPECT_EQ(ids_of(scheduler.remove(first)), answer_a);
    EXPECT_EQ(ids_of(scheduler.remove(last)), answer_b);
    EXPECT_EQ(ids_of(generate(*engine, prefix_request(*engine, a))), answer_a);
  }
  expect_no_page_lost(*engine);
}

// State that requests share: half a change there could give another request a wrong answer.
TEST(Scheduler, FailedCheckInSharedStateEndsTheProcess) {
  const std::unique_ptr<Engine> engine = make_engine(1);
  PagePool& pool = engine->pools().of(kHeadDim, engine->kv_shape().codec);
  const auto release_twice = [&] {
    const CheckScope own(CheckScope::Failure::kThrow);
    const int32_t page = pool.allocate();
    pool.release(page);
    pool.release(page);
  };
  EXPECT_DEATH(release_twice(), "CHECK");
}

}  // namespace
}  // namespace vlcache
