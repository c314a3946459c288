// Requests under a constraint: alone and together, to its end and to a dead end.
#include <numeric>

#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

// Tokens that count up from `first`, `n` of them; after half of them the text may end.
class Counting final : public TokenConstraint {
 public:
  Counting(int32_t first, int32_t n) : next_(first), end_(first + n), middle_(first + n / 2) {}
  bool mask(std::span<float> logits, std::span<const int32_t> ends) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      const auto token = static_cast<int32_t>(i);
      const bool is_end = next_ >= middle_ && std::ranges::find(ends, token) != ends.end();
      if (token != next_ && !is_end) logits[i] = -INFINITY;
    }
    return next_ < std::ssize(logits);
  }
  void take(int32_t token) override {
    EXPECT_EQ(token, next_);
    ++next_;
  }
  bool complete() const override { return next_ == end_; }

 private:
  int32_t next_, end_, middle_;
};

Request counting(Engine& engine, int32_t first, int32_t n, uint32_t seed = 7) {
  Request request;
  request.prompt = engine.prepare_tokens(random_tokens(20, seed));
  request.policy = parse_policy("full");
  request.options.ignore_eos = true;
  request.constraint = std::make_unique<Counting>(first, n);
  return request;
}

TEST(Constraint, ConstrainsTheWholeAnswer) {
  const auto engine = make_engine(2);
  const GenerateResult result = generate(*engine, counting(*engine, 3, 5));
  EXPECT_EQ(ids_of(result), (std::vector<int32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
}

TEST(Constraint, EveryRequestOfABatchHasItsOwnConstraint) {
  const auto engine = make_engine(2);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(counting(*engine, 2 * i, 10, static_cast<uint32_t>(i)));
  requests[5].constraint.reset();
  requests[5].options.max_tokens = 10;
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  for (int32_t i = 0; i < 5; ++i) {
    std::vector<int32_t> expected(10);
    std::iota(expected.begin(), expected.end(), 2 * i);
    EXPECT_EQ(ids_of(results[static_cast<size_t>(i)]), expected);
  }
  EXPECT_EQ(results[5].finish_reason, FinishReason::kLength);
}

TEST(Constraint, EndTokensAreAllowedWhereTheConstraintCanEnd) {
  const auto engine = make_engine(2);
  Request request = counting(*engine, 10, 20);
  request.options.stop_tokens = {5, 25};  // 5 may come from the tenth on; 25 is also the token whose turn it is
  request.options.sampling.temperature = 1;
  const GenerateResult result = generate(*engine, std::move(request));
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_GE(result.tokens.size(), 11u);
  EXPECT_LE(result.tokens.size(), 16u);
}

TEST(Constraint, DeadEndIsAnError) {
  const auto engine = make_engine(2);
  EXPECT_THROW(generate(*engine, counting(*engine, kVocab - 3, 5)), Error);
}

TEST(Constraint, MaxTokensTruncateTheAnswer) {
  const auto engine = make_engine(2);
  Request request = counting(*engine, 3, 10);
  request.options.max_tokens = 4;
  const GenerateResult result = generate(*engine, std::move(request));
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(result.tokens.size(), 4u);
}

TEST(Constraint, MinTokensDelayTheEndToken) {
  const auto engine = make_engine(2);
  for (const int32_t min_tokens : {0, 13, 18, 100}) {
    Request request = counting(*engine, 10, 20);
    request.options.stop_tokens = {5};
    request.options.sampling.temperature = 1;
    request.options.sampling.biases = {{5, 100.0f}};  // it ends where it may
    request.options.min_tokens = min_tokens;
    const GenerateResult result = generate(*engine, std::move(request));
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
    // An end token follows the minimum; the constraint's own end comes first.
    EXPECT_EQ(std::ssize(result.tokens), min_tokens == 100 ? 20 : std::max(10, min_tokens) + 1) << min_tokens;
  }
}

TEST(MinTokens, EndTokensAreNotSampledEarlier) {
  const auto engine = make_engine(2);
  const auto ask = [&](int32_t min_tokens, std::vector<int32_t> stops) {
    Request request = counting(*engine, 0, 1);
    request.constraint.reset();
    request.options.max_tokens = 12;
    request.options.min_tokens = min_tokens;
    request.options.stop_tokens = std::move(stops);
    return generate(*engine, std::move(request));
  };
  const std::vector<int32_t> all = ids_of(ask(0, {}));
  const int32_t end = all[4];
  const auto first = std::ranges::find(all, end) - all.begin();
  EXPECT_EQ(std::ssize(ask(0, {end}).tokens), first + 1);
  for (const int32_t min_tokens : {1, 5, 8, 12, 1000}) {
    const GenerateResult result = ask(min_tokens, {end, -1, kVocab});
    const std::vector<int32_t> ids = ids_of(result);
    EXPECT_GE(std::ssize(ids), std::min(min_tokens, 12)) << min_tokens;
    for (int32_t i = 0; i < std::min<int32_t>(min_tokens, static_cast<int32_t>(ids.size())); ++i) {
      EXPECT_NE(ids[static_cast<size_t>(i)], end) << min_tokens;
    }
  }
  // Every token is an end: the answer continues with the likeliest of them.
  std::vector<int32_t> every(kVocab);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_EQ(ask(3, every).finish_reason, FinishReason::kStop);
}

}  // namespace
}  // namespace vlcache
