// Requests under token rules: in a batch, under a grammar, with other random seeds, preempted.
#include <algorithm>
#include <set>

#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

Request ruled(const Engine& engine, TokenRules rules, uint32_t seed = 7, int32_t n = 40) {
  Request request;
  request.prompt = engine.prepare_tokens(random_tokens(20, seed));
  request.policy = parse_policy("full");
  request.options.ignore_eos = true;
  request.options.max_tokens = n;
  request.options.rules = std::move(rules);
  return request;
}

// Sequences of n tokens that appear twice in the prompt and answer and end in the answer.
int n_repeated(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer, size_t n) {
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), answer.begin(), answer.end());
  std::set<std::vector<int32_t>> seen;
  int found = 0;
  for (size_t end = n; end <= text.size(); ++end) {
    const auto last = text.begin() + static_cast<std::ptrdiff_t>(end);
    const bool is_new = seen.insert({last - static_cast<std::ptrdiff_t>(n), last}).second;
    if (!is_new && end > prompt.size()) ++found;
  }
  return found;
}

TEST(TokenRules, EveryRequestOfABatchHasItsOwn) {
  const auto engine = make_engine(2);
  const std::vector<int32_t> plain = ids_of(generate(*engine, ruled(*engine, {})));
  const std::vector<int32_t> prompt = random_tokens(20, 7);
  ASSERT_GT(n_repeated(prompt, plain, 2), 0) << "the rule would change nothing";
  const auto requests = [&] {
    std::vector<Request> all;
    all.push_back(ruled(*engine, {}));
    all.push_back(ruled(*engine, {.no_repeat_ngram = 2}));
    all.push_back(ruled(*engine, {.suppressed = {plain[0], plain[1]}}));
    all.push_back(ruled(*engine, {.bad_words = {{plain[0], plain[1]}, {prompt[19], plain[0]}}}));
    all.push_back(ruled(*engine, {.suppressed_first = {plain[0]}}));
    all.push_back(ruled(*engine, {.no_repeat_ngram = 3}));
    all.back().options.sampling = {.temperature = 1.5f, .seed = 11};
    return all;
  };
  std::vector<std::vector<int32_t>> ids;
  for (const GenerateResult& result : generate(*engine, requests())) ids.push_back(ids_of(result));
  EXPECT_EQ(ids[0], plain);
  EXPECT_EQ(n_repeated(prompt, ids[1], 2), 0);
  for (const int32_t token : ids[2]) EXPECT_TRUE(token != plain[0] && token != plain[1]);
  EXPECT_NE(ids[3][0], plain[0]);
  for (size_t i = 1; i < ids[3].size(); ++i) EXPECT_FALSE(ids[3][i - 1] == plain[0] && ids[3][i] == plain[1]);
  EXPECT_NE(ids[4][0], plain[0]);
  EXPECT_EQ(n_repeated(prompt, ids[5], 3), 0);
  // The same alone.
  std::vector<Request> alone = requests();
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(ids_of(generate(*engine, std::move(alone[i]))), ids[i]) << i;
}

TEST(TokenRules, PreemptedRequestsKeepThem) {
  const auto engine = make_engine(2);
  const std::vector<int32_t> alone = ids_of(generate(*engine, ruled(*engine, {.no_repeat_ngram = 2})));
  Scheduler scheduler(*engine, {.max_running = 1});
  Request asked = ruled(*engine, {.no_repeat_ngram = 2});
  int n_tokens = 0;
  asked.callbacks.on_token = [&](const GeneratedToken&) { ++n_tokens; };
  const RequestId id = scheduler.add(std::move(asked));
  bool asked_urgent = false;
  while (!scheduler.done(id)) {
    scheduler.step();
    if (n_tokens < 10 || std::exchange(asked_urgent, true)) continue;
    Request urgent = ruled(*engine, {}, 9, 2);
    urgent.priority = 1;
    scheduler.add(std::move(urgent));
  }
  const GenerateResult result = scheduler.remove(id);
  EXPECT_EQ(result.preemptions.n_times, 1);
  EXPECT_EQ(ids_of(result), alone);
  while (scheduler.step()) {
  }
}

// A grammar that leaves one token: it comes, whatever the rules say.
class OneToken final : public TokenConstraint {
 public:
  bool mask(std::span<float> logits, std::span<const int32_t>) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (i != 5) logits[i] = -INFINITY;
    }
    return true;
  }
  void take(int32_t token) override { EXPECT_EQ(token, 5); }
  bool complete() const override { return false; }
};

TEST(TokenRules, GrammarsComeFirst) {
  const auto engine = make_engine(2);
  Request request = ruled(*engine, {.suppressed = {5}, .no_repeat_ngram = 1}, 7, 4);
  request.constraint = std::make_unique<OneToken>();
  EXPECT_EQ(ids_of(generate(*engine, std::move(request))), (std::vector<int32_t>{5, 5, 5, 5}));
}

// No token is left: the rules are lifted, and the answer continues to its end.
TEST(TokenRules, AllTokensSuppressed) {
  const auto engine = make_engine(2);
  std::vector<int32_t> all(kVocab);
  for (int32_t i = 0; i < kVocab; ++i) all[static_cast<size_t>(i)] = i;
  EXPECT_EQ(ids_of(generate(*engine, ruled(*engine, {.suppressed = all}))),
            ids_of(generate(*engine, ruled(*engine, {}))));
}

}  // namespace
}  // namespace vlcache
