// Each metric on answers scored by hand.
#include "analysis/metrics.h"

#include <gtest/gtest.h>

#include <vector>

namespace vlcache {
namespace {

double score(Metric metric, std::string_view given, std::vector<std::string> answers) {
  return score_answer(metric, given, answers);
}

TEST(Metrics, Exact) {
  EXPECT_EQ(score(Metric::kExact, " 12.50\n", {"12.50"}), 1);
  EXPECT_EQ(score(Metric::kExact, "12.5", {"12.50"}), 0);
  EXPECT_EQ(score(Metric::kExact, "b", {"a", "b"}), 1);
  EXPECT_EQ(score(Metric::kExact, "", {}), 0);
}

TEST(Metrics, Normalised) {
  EXPECT_EQ(score(Metric::kNormalised, "The  Cat!", {"cat"}), 1);
  EXPECT_EQ(score(Metric::kNormalised, "12.5", {"125"}), 0);
  EXPECT_EQ(score(Metric::kNormalised, "1,5", {"1.5"}), 1);
  EXPECT_EQ(score(Metric::kNormalised, "New-York", {"new york"}), 1);
  EXPECT_EQ(score(Metric::kNormalised, "...", {""}), 1);
}

TEST(Metrics, Anls) {
  EXPECT_DOUBLE_EQ(score(Metric::kAnls, "Hello", {"hello"}), 1);
  EXPECT_DOUBLE_EQ(score(Metric::kAnls, "hallo", {"hello"}), 0.8);
  EXPECT_DOUBLE_EQ(score(Metric::kAnls, "abcd", {"wxyz"}), 0);
  EXPECT_DOUBLE_EQ(score(Metric::kAnls, "ab", {"abcd"}), 0.5);
  EXPECT_DOUBLE_EQ(score(Metric::kAnls, "a", {"abcd"}), 0);
  EXPECT_DOUBLE_EQ(score(Metric::kAnls, "", {"abcd"}), 0);
}

TEST(Metrics, Relaxed) {
  EXPECT_EQ(score(Metric::kRelaxed, "104", {"100"}), 1);
  EXPECT_EQ(score(Metric::kRelaxed, "106", {"100"}), 0);
  EXPECT_EQ(score(Metric::kRelaxed, "1,040 %", {"1000"}), 1);
  EXPECT_EQ(score(Metric::kRelaxed, "0.01", {"0"}), 0);
  EXPECT_EQ(score(Metric::kRelaxed, "yes", {"Yes"}), 1);
}

TEST(Metrics, Vqa) {
  EXPECT_DOUBLE_EQ(score(Metric::kVqa, "red", {"red", "blue", "Red.", "blue"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score(Metric::kVqa, "red", {"red", "red", "red", "red"}), 1);
  EXPECT_DOUBLE_EQ(score(Metric::kVqa, "red", {"the red"}), 1);
}

TEST(Metrics, Choice) {
  EXPECT_EQ(score(Metric::kChoice, "(B) 12", {"B"}), 1);
  EXPECT_EQ(score(Metric::kChoice, "Answer: b.", {"B"}), 1);
  EXPECT_EQ(score(Metric::kChoice, "C", {"B"}), 0);
  EXPECT_EQ(score(Metric::kChoice, "12 cm", {"12 cm."}), 1);
}

TEST(Metrics, NamesSurviveARoundTrip) {
  for (const char* name : {"exact", "normalised", "anls", "relaxed", "vqa", "choice"}) {
    ASSERT_TRUE(metric_from_name(name));
    EXPECT_EQ(metric_name(*metric_from_name(name)), name);
  }
  EXPECT_FALSE(metric_from_name("bleu"));
}

}  // namespace
}  // namespace vlcache
