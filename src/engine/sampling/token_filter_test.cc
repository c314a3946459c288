// Suppressed tokens, bad words and repeated sequences against tables worked out by hand from transformers' processors.
#include "engine/sampling/token_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/sampling/bad_words.h"
#include "engine/sampling/no_repeat_ngram.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;
using Tokens = std::vector<int32_t>;

Tokens ngram_ends(const Tokens& text, int32_t n) {
  Tokens found;
  add_ngram_ends(text, n, found);
  return found;
}

Tokens word_ends(const std::vector<Tokens>& words, const Tokens& text) {
  Tokens found;
  add_bad_word_ends(words, text, found);
  return found;
}

// The forbidden tokens of a vocabulary of eight.
Tokens forbidden(TokenFilter& filter) {
  std::vector<float> logits(8, 1.0f);
  filter.restrict_logits(logits);
  Tokens found;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isinf(logits[i])) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

TEST(NoRepeatNgram, Table) {
  EXPECT_THAT(ngram_ends({1, 2, 3, 1, 2}, 3), ElementsAre(3));
  EXPECT_THAT(ngram_ends({1, 2, 3, 1, 2}, 2), ElementsAre(3));
  EXPECT_THAT(ngram_ends({1, 2, 3, 1, 2, 4, 1, 2}, 3), ElementsAre(3, 4));
  EXPECT_THAT(ngram_ends({1, 2, 3, 2, 1}, 2), ElementsAre(2));
  EXPECT_THAT(ngram_ends({1, 2, 3}, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(ngram_ends({5, 5, 5, 5}, 3), ElementsAre(5, 5));
  EXPECT_THAT(ngram_ends({5, 5}, 2), ElementsAre(5));
  EXPECT_THAT(ngram_ends({1, 2, 1, 2, 1, 3, 1, 2, 1}, 4), ElementsAre(2, 3));
  EXPECT_THAT(ngram_ends({1, 2, 3, 4}, 2), ElementsAre());  // 4 has no successor
  EXPECT_THAT(ngram_ends({1, 2}, 3), ElementsAre());        // shorter than n
  EXPECT_THAT(ngram_ends({1, 2}, INT32_MAX), ElementsAre());
  EXPECT_THAT(ngram_ends({}, 1), ElementsAre());
  EXPECT_THAT(ngram_ends({1, 1}, 0), ElementsAre());
}

// Every text of three different tokens, against the definition.
TEST(NoRepeatNgram, EqualsTheDefinition) {
  for (uint32_t bits = 0; bits < 729; ++bits) {
    Tokens text;
    for (uint32_t left = bits; text.size() < 6; left /= 3) text.push_back(static_cast<int32_t>(left % 3));
    for (int32_t n = 2; n <= 5; ++n) {
      Tokens expected;
      for (size_t end = static_cast<size_t>(n) - 1; end < text.size(); ++end) {
        const auto from = text.begin() + static_cast<std::ptrdiff_t>(end) - (n - 1);
        if (std::equal(from, from + (n - 1), text.end() - (n - 1))) expected.push_back(text[end]);
      }
      EXPECT_EQ(ngram_ends(text, n), expected) << bits << " " << n;
    }
  }
}

TEST(NoRepeatNgram, IsLinearInTextsOfOneToken) {
  const Tokens text(200'000, 7);
  EXPECT_EQ(ngram_ends(text, 100'000).size(), 100'001u);
}

TEST(BadWords, Table) {
  const std::vector<Tokens> words{{4}, {1, 2}, {1, 2, 3}, {}};
  EXPECT_THAT(word_ends(words, {}), ElementsAre(4));
  EXPECT_THAT(word_ends(words, {1}), ElementsAre(4, 2));
  EXPECT_THAT(word_ends(words, {2, 1}), ElementsAre(4, 2));
  EXPECT_THAT(word_ends(words, {1, 2}), ElementsAre(4, 3));
  EXPECT_THAT(word_ends(words, {1, 2, 5}), ElementsAre(4));
}

TEST(TokenFilter, PromptAndAnswerAreOneText) {
  TokenFilter filter({.bad_words = {{1, 2}}, .no_repeat_ngram = 2}, {});
  filter.add_prompt(Tokens{3, 5, 1});
  EXPECT_THAT(forbidden(filter), ElementsAre(2));
  filter.take(3);
  EXPECT_THAT(forbidden(filter), ElementsAre(5));
  filter.take(1);
  EXPECT_THAT(forbidden(filter), UnorderedElementsAre(2, 3));
}

TEST(TokenFilter, SuppressedTokens) {
  TokenFilter filter({.suppressed = {1, -1, 8, 100}, .suppressed_first = {2}}, {});
  EXPECT_TRUE((TokenRules{.suppressed_first = {2}}.any()));
  EXPECT_FALSE(TokenRules{}.any());
  filter.add_prompt(Tokens{6});
  EXPECT_THAT(forbidden(filter), ElementsAre(1, 2));
  filter.take(0);
  EXPECT_THAT(forbidden(filter), ElementsAre(1));
}

TEST(TokenFilter, EndTokensAreNoBadWords) {
  const Tokens ends{3};
  TokenFilter filter({.bad_words = {{3}, {4}, {5, 3}}}, ends);
  EXPECT_THAT(forbidden(filter), ElementsAre(4));
  filter.take(5);
  EXPECT_THAT(forbidden(filter), ElementsAre(3, 4));
}

TEST(TokenFilter, RulesAreLiftedWhereNoTokenIsLeft) {
  TokenFilter filter({.suppressed = {0, 1}}, {});
  std::vector<float> logits{1.0f, 2.0f, -INFINITY, -INFINITY};  // as a grammar has left them
  filter.restrict_logits(logits);
  EXPECT_THAT(logits, ElementsAre(1.0f, 2.0f, -INFINITY, -INFINITY));
  logits[2] = -5.0f;
  filter.restrict_logits(logits);
  EXPECT_THAT(logits, ElementsAre(-INFINITY, -INFINITY, -5.0f, -INFINITY));
}

}  // namespace
}  // namespace vlcache
