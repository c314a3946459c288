// Greedy, penalties and truncation against hand-computed distributions.
#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"

namespace vlcache {
namespace {

std::map<int32_t, double> frequencies(const SamplingParams& params, const std::vector<float>& logits, int n = 20000) {
  std::map<int32_t, double> f;
  Sampler draws(params, static_cast<int64_t>(logits.size()));
  for (int i = 0; i < n; ++i) {
    std::vector<float> copy = logits;
    f[draws.sample(copy).token] += 1.0 / n;
  }
  return f;
}

const std::vector<float> kLogits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};

TEST(Sampler, GreedyPicksTheFirstOfEqualLogits) {
  Sampler s({}, 4);
  std::vector<float> logits{1.0f, 3.0f, 3.0f, -2.0f};
  EXPECT_EQ(s.sample(logits).token, 1);
}

TEST(Sampler, TemperatureShapesTheDistribution) {
  const auto f = frequencies({.temperature = 0.5f, .seed = 3}, kLogits);
  const double z = 0.25 + 0.09 + 0.0225 + 0.0025;
  EXPECT_NEAR(f.at(0), 0.25 / z, 0.015);
  EXPECT_NEAR(f.at(2), 0.0225 / z, 0.01);
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits{3.0f, 30.0f, 29.0f, -2.0f};
  for (const float temperature : {1e-2f, 1e-30f, 1e-38f, 1e-45f}) {
    for (const int32_t top_k : {0, 3}) {
      const auto f = frequencies({.temperature = temperature, .top_k = top_k, .top_p = 0.99f}, logits, 50);
      EXPECT_EQ(f.size(), 1u) << temperature;
      EXPECT_EQ(f.begin()->first, 1) << temperature;
    }
  }
  // Equals stay equal.
  EXPECT_NEAR(frequencies({.temperature = 1e-38f}, {1.0f, 2.0f, 2.0f}).at(2), 0.5, 0.02);
}

TEST(Sampler, TopKTopPMinPCutTheTail) {
  const auto k = frequencies({.temperature = 1.0f, .top_k = 2}, kLogits);
  ASSERT_EQ(k.size(), 2u);
  EXPECT_NEAR(k.at(0), 0.625, 0.015);
  EXPECT_EQ(frequencies({.temperature = 1.0f, .top_p = 0.79f}, kLogits).size(), 2u);  // 0.5 + 0.3 reaches it
  EXPECT_EQ(frequencies({.temperature = 1.0f, .top_p = 0.81f}, kLogits).size(), 3u);
  EXPECT_EQ(frequencies({.temperature = 1.0f, .top_p = 0.0001f}, kLogits).size(), 1u);
  EXPECT_EQ(frequencies({.temperature = 1.0f, .min_p = 0.2f}, kLogits).size(), 3u);  // 0.15 >= 0.2 * 0.5 > 0.05
}

TEST(Sampler, SameSeedSameTokens) {
  Sampler a({.temperature = 1.0f, .seed = 7}, 4), b({.temperature = 1.0f, .seed = 7}, 4),
      c({.temperature = 1.0f, .seed = 8}, 4);
  int differ = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<float> x = kLogits, y = kLogits, z = kLogits;
    const int32_t t = a.sample(x).token;
    ASSERT_EQ(t, b.sample(y).token);
    differ += t != c.sample(z).token;
  }
  EXPECT_GT(differ, 10);
}

TEST(Sampler, RepetitionPenaltyCoversThePromptAndBothSigns) {
  Sampler s({.repetition_penalty = 2.0f}, 3);
  const std::vector<int32_t> prompt{0, 0, 2};
  s.add_prompt(prompt);
  std::vector<float> logits{3.0f, 1.6f, -1.0f};
  EXPECT_EQ(s.sample(logits).token, 1);  // 1.5, 1.6, -2
  EXPECT_FLOAT_EQ(logits[0], 1.5f);
  EXPECT_FLOAT_EQ(logits[2], -2.0f);
}

TEST(Sampler, PresenceAndFrequencyCountGeneratedTokensOnly) {
  Sampler s({.presence_penalty = 0.5f, .frequency_penalty = 0.25f}, 2);
  const std::vector<int32_t> prompt{0};
  s.add_prompt(prompt);
  std::vector<float> first{2.0f, 0.0f};
  EXPECT_EQ(s.sample(first).token, 0);
  EXPECT_FLOAT_EQ(first[0], 2.0f);
  std::vector<float> second{2.0f, 0.0f}, third{2.0f, 0.0f};
  s.sample(second);
  EXPECT_FLOAT_EQ(second[0], 1.25f);
  s.sample(third);
  EXPECT_FLOAT_EQ(third[0], 1.0f);
}

TEST(Sampler, BiasesAreAddedBeforePenalties) {
  Sampler s({.repetition_penalty = 2.0f, .biases = {{0, -100.0f}, {2, 1.5f}}}, 4);
  s.add_prompt(std::vector<int32_t>{2, -1, 1 << 20});  // image tokens may have ids that are in no vocabulary
  std::vector<float> logits{9.0f, 2.0f, 1.0f, -2.0f};
  EXPECT_EQ(s.sample(logits).token, 1);
  EXPECT_EQ(logits, (std::vector<float>{-91.0f, 2.0f, 1.25f, -2.0f}));
  const auto f = frequencies({.temperature = 1.0f, .biases = {{1, 100.0f}}}, kLogits, 100);
  EXPECT_EQ(f.size(), 1u);
  EXPECT_EQ(f.begin()->first, 1);
  EXPECT_THROW(Sampler({.biases = {{0, NAN}}}, 4), Error);
}

TEST(Sampler, LogprobsIgnorePenalties) {
  Sampler s({.repetition_penalty = 100.0f, .n_logprobs = 2}, 4);
  const std::vector<int32_t> prompt{0, 1};
  s.add_prompt(prompt);
  std::vector<float> logits{std::log(0.5f) + 5, std::log(0.3f) + 5, std::log(0.15f) + 5, std::log(0.05f) + 5};
  const SampledToken t = s.sample(logits);
  EXPECT_EQ(t.token, 2);
  EXPECT_NEAR(t.logprob, std::log(0.15f), 1e-5);
  ASSERT_EQ(t.top.size(), 2u);
  EXPECT_EQ(t.top[1].token, 1);
  EXPECT_NEAR(t.top[1].logprob, std::log(0.3f), 1e-5);
}

TEST(Sampler, RestrictedTokensAreNeverSampled) {
  const auto only_the_unlikely = [](std::span<float> logits) {
    for (size_t i = 0; i < 3; ++i) logits[i] = -INFINITY;
  };
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 1.0f},
                                       SamplingParams{.temperature = 2.0f, .top_k = 3, .min_p = 0.1f},
                                       SamplingParams{.temperature = 1.0f, .top_p = 0.5f, .frequency_penalty = 2.0f}}) {
    Sampler s(params, 4);
    for (int i = 0; i < 50; ++i) {
      std::vector<float> logits = kLogits;
      EXPECT_EQ(s.sample(logits, only_the_unlikely).token, 3);
    }
  }
}

TEST(Sampler, LogprobsIgnoreTheRestriction) {
  Sampler s({.n_logprobs = 1}, 4);
  std::vector<float> logits = kLogits;
  const SampledToken t = s.sample(logits, [](std::span<float> x) { x[0] = -INFINITY; });
  EXPECT_EQ(t.token, 1);
  EXPECT_NEAR(t.logprob, std::log(0.3f), 1e-5);
  EXPECT_EQ(t.top[0].token, 0);
}

TEST(Sampler, RejectsValuesOutOfRange) {
  EXPECT_THROW(Sampler({.temperature = -1.0f}, 4), Error);
  EXPECT_THROW(Sampler({.top_p = 0.0f}, 4), Error);
  EXPECT_THROW(Sampler({.min_p = 1.5f}, 4), Error);
  EXPECT_THROW(Sampler({.repetition_penalty = 0.0f}, 4), Error);
  EXPECT_THROW(Sampler({.temperature = std::nanf("")}, 4), Error);
}

}  // namespace
}  // namespace vlcache
