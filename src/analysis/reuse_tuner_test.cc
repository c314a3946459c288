// The comparisons of answers, on the model that ships.
#include "analysis/reuse_tuner.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/scheduler/scheduler.h"
#include "io/tokenizer/tokenizer.h"
#include "ops/factory.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

const std::filesystem::path kFixtures = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/tinydoc";

std::vector<ReuseCase> tinydoc_cases(int32_t n) {
  return make_reuse_cases(load_dataset(kFixtures / "questions.jsonl", {}).samples, n, 7);
}

TEST(ReuseTuner, EachQuestionIsOneCase) {
  const std::vector<ReuseCase> cases = tinydoc_cases(10000);
  EXPECT_EQ(cases.size(), 500u);
  std::set<std::pair<std::string, std::string>> questions;
  for (const ReuseCase& c : cases) {
    questions.emplace(c.images.back().string(), c.question);
    EXPECT_EQ(c.right_answers.size(), 1u);
  }
  EXPECT_EQ(questions.size(), 500u);
  EXPECT_TRUE(questions_about({"a.png"})[0].turns[0].answers.empty());  // built-in questions have no right answers
}

TEST(ReuseTuner, ChangedAnswersAreFound) {
  if (backend_names().front() == "ref") GTEST_SKIP() << "minutes without kernels";
  EngineOptions options;
  options.dtype = DType::kF32;
  options.kv_memory_bytes = 256 << 20;
  options.cache_bytes = 256 << 20;
  const auto engine = Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/models/tinydoc"), options);
  ReuseTuner tuner(*engine, 16);
  std::vector<ReuseCase> cases = tinydoc_cases(3);
  std::vector<ReuseTuner::Answer> full;
  std::vector<std::vector<int32_t>> answers;
  for (const ReuseCase& c : cases) {
    full.push_back(tuner.full(c));
    answers.push_back(full.back().tokens);
    ASSERT_GT(answers.back().size(), 1u);
  }
  // In f32, another order of the arithmetic changes nothing here; another token is a change, wherever it stands.
  EXPECT_EQ(tuner.unchanged(cases, answers, 0), std::vector<bool>(3, true));
  EXPECT_EQ(tuner.unchanged(cases, answers, 100), std::vector<bool>(3, true));
  std::vector<int32_t> ends;  // of the pieces of a prompt
  std::vector<Request> one(1);
  one[0].prompt = engine->prepare_raw("<s>User: What is the TOTAL?", {});
  one[0].policy = parse_policy("full");
  one[0].options.max_tokens = 0;
  one[0].callbacks.on_prefill = [&](int32_t done, int32_t) { ends.push_back(done); };
  generate(*engine, std::move(one), {.prefill_chunk = 5});
  ASSERT_GT(ends.size(), 2u);
  EXPECT_EQ(ends[1] - ends[0], 5);

  answers[0].front() += 1;
  answers[1].back() += 1;
  EXPECT_EQ(tuner.unchanged(cases, answers, 0), (std::vector<bool>{false, false, true}));

  cases[2].right_answers = {engine->tokenizer().decode(answers[2], /*skip_special_tokens=*/true)};
  // Everything recomputed: no change. The answer of the tampered one differs and its score rises if that is right.
  const std::vector<ReuseChooserPtr> all{parse_reuse_chooser("static:r=1")};
  const ReuseTuner::Comparison same = tuner.compare(cases[2], full[2], all)[0];
  EXPECT_TRUE(same.equal);
  EXPECT_NEAR(same.kl, 0, 1e-6);
  EXPECT_EQ(same.gain, 0);
  ReuseTuner::Answer other = full[2];
  other.tokens.front() += 1;
  const ReuseTuner::Comparison changed = tuner.compare(cases[2], other, all)[0];
  EXPECT_FALSE(changed.equal);
  EXPECT_EQ(changed.gain, 1);
  cases[2].right_answers = {};
  EXPECT_EQ(tuner.compare(cases[2], other, all)[0].gain, 0);
}

}  // namespace
}  // namespace vlcache
