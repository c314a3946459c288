#include "engine/sequence/sequence_tokens.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

SequenceTokens tokens_of_prompt(int32_t n) {
  SequenceTokens tokens;
  std::vector<TokenInfo> infos(static_cast<size_t>(n));
  for (int32_t t = 0; t < n; ++t) infos[static_cast<size_t>(t)] = {.id = t, .meta = {.position = Position::all(t)}};
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
  EXPECT_EQ(tokens.all()[10].meta.position.t, 10);
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
  EXPECT_EQ(tokens.all()[6].meta.position.t, 0);
  EXPECT_EQ(tokens.next_position(), 4);
  tokens.truncate(8);
  tokens.slide(4);
  EXPECT_EQ(tokens.state(4), TokenState::kPending);
  EXPECT_EQ(tokens.all()[4].meta.position.t, 0);
}

// Text 0 1, an image of 2 x 3 tokens at (2, 2.., 2..), text 5 6.
SequenceTokens tokens_with_image() {
  std::vector<TokenInfo> infos;
  const auto add = [&](Position p) { infos.push_back({.meta = {.position = p}}); };
  add(Position::all(0)), add(Position::all(1));
  for (int32_t h = 0; h < 2; ++h) {
    for (int32_t w = 0; w < 3; ++w) add({2, 2 + h, 2 + w});
  }
  add(Position::all(5)), add(Position::all(6));
  SequenceTokens tokens;
  tokens.take(infos, 0);
  return tokens;
}

TEST(SequenceTokens, TextFollowsTheLargestComponent) {
  SequenceTokens tokens = tokens_with_image();
  EXPECT_EQ(tokens.next_position(), 7);
  tokens.add({.id = 3});
  EXPECT_EQ(tokens.all().back().meta.position, Position::all(7));
  tokens.truncate(5);  // within the first row of the image
  EXPECT_EQ(tokens.next_position(), 5);
  tokens.truncate(4);
  EXPECT_EQ(tokens.next_position(), 4);
}

TEST(SequenceTokens, ARepetitionKeepsTheLayoutOfAnImage) {
  SequenceTokens tokens = tokens_with_image();
  tokens.repeat(1, 9);
  EXPECT_EQ(tokens.all()[10].meta.position, Position::all(7));
  EXPECT_EQ(tokens.all()[11].meta.position, (Position{8, 8, 8}));
  EXPECT_EQ(tokens.all()[16].meta.position, (Position{8, 9, 10}));
  EXPECT_EQ(tokens.all()[17].meta.position, Position::all(11));
  EXPECT_EQ(tokens.next_position(), 12);
  EXPECT_EQ(tokens.n_pending(), 18);
}

TEST(SequenceTokens, AWindowMovesAllComponentsByOneNumber) {
  SequenceTokens tokens = tokens_with_image();
  tokens.slide(4);  // the image's last two, (2, 3, 3) and (2, 3, 4), and the text
  EXPECT_EQ(tokens.all()[6].meta.position, (Position{0, 1, 1}));
  EXPECT_EQ(tokens.all()[7].meta.position, (Position{0, 1, 2}));
  EXPECT_EQ(tokens.all()[9].meta.position, Position::all(4));
  EXPECT_EQ(tokens.next_position(), 5);
  tokens.add({.id = 3});
  tokens.slide(2);
  EXPECT_EQ(tokens.all()[9].meta.position, Position::all(0));
  tokens.truncate(9);
  tokens.slide(4);
  EXPECT_EQ(tokens.all()[5].meta.position, (Position{0, 1, 0}));
  EXPECT_EQ(tokens.all()[8].meta.position, Position::all(3));
}

}  // namespace
}  // namespace vlcache
