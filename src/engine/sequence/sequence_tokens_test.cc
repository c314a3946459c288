#include "engine/sequence/sequence_tokens.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

SequenceTokens tokens_of_prompt(int32_t n) {
  SequenceTokens tokens;
  std::vector<TokenInfo> infos(static_cast<size_t>(n));
  for (int32_t t = 0; t < n; ++t) infos[static_cast<size_t>(t)] = {.id = t, .meta = {.t = t}};
  tokens.take(std::move(infos), 0);
  return tokens;
}

TEST(SequenceTokens, CountsFollowTheStates) {
  SequenceTokens tokens = tokens_of_prompt(10);
  EXPECT_EQ(tokens.n_pending(), 10);
  const std::vector<TokenRun> loaded{{2, 4}, {6, 7}}, entering{{6, 7}};
  tokens.set(loaded, TokenState::kLoaded);
  tokens.set(entering, TokenState::kEntering);
  EXPECT_EQ(tokens.n_done(), 0);
  EXPECT_EQ(tokens.n_pending(), 8);
  EXPECT_EQ(tokens.find_supplied(0, 10), 2);
  EXPECT_EQ(tokens.find_supplied(4, 10), 6);
  EXPECT_EQ(tokens.find_supplied(7, 10), 10);
  const std::vector<TokenRun> step{{0, 2}, {4, 7}};
  tokens.finish(step);
  EXPECT_EQ(tokens.n_done(), 7);
  EXPECT_EQ(tokens.n_pending(), 3);
  EXPECT_EQ(tokens.state(3), TokenState::kLoaded);
  EXPECT_EQ(tokens.state(5), TokenState::kComputed);
  EXPECT_EQ(tokens.state(6), TokenState::kLoaded);  // the deeper layers load it
  tokens.add({.id = 5});
  EXPECT_EQ(tokens.all()[10].meta.t, 10);
  EXPECT_EQ(tokens.next_position(), 11);
  EXPECT_EQ(tokens.n_pending(), 4);
}

TEST(SequenceTokens, TheTailComesBackAsItWas) {
  SequenceTokens tokens = tokens_of_prompt(6);
  const std::vector<TokenRun> first{{0, 3}}, loaded{{4, 5}};
  tokens.finish(first);
  tokens.set(loaded, TokenState::kLoaded);
  const SequenceTokens::Tail tail = tokens.tail(3);
  tokens.truncate(3);
  tokens.add({.id = 100});
  tokens.truncate(3);
  tokens.append(tail);
  EXPECT_EQ(tokens.size(), 6);
  EXPECT_EQ(tokens.n_done(), 3);
  EXPECT_EQ(tokens.n_pending(), 2);
  EXPECT_EQ(tokens.state(4), TokenState::kLoaded);
  EXPECT_EQ(tokens.next_position(), 6);
}

TEST(SequenceTokens, AWindowIsNumberedFromZero) {
  SequenceTokens tokens = tokens_of_prompt(10);
  tokens.slide(4);
  EXPECT_EQ(tokens.n_done(), 6);  // outside
  EXPECT_EQ(tokens.n_pending(), 4);
  EXPECT_EQ(tokens.all()[6].meta.t, 0);
  EXPECT_EQ(tokens.next_position(), 4);
  tokens.truncate(8);
  tokens.slide(4);
  EXPECT_EQ(tokens.state(4), TokenState::kPending);
  EXPECT_EQ(tokens.all()[4].meta.t, 0);
}

}  // namespace
}  // namespace vlcache
