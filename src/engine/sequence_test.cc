// Continuing a conversation on its KV: what may be kept and what must not.
#include "engine/sequence.h"

#include <gtest/gtest.h>

#include "ops/factory.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

class SequenceTest : public testing::Test {
 protected:
  SequenceTest()
      : backend_(make_backend("ref", DType::kF32)),
        shape_(KvShape::uniform(1, 1, 32, KvCodec::kF32)),
        pools_(*backend_, shape_, 16 << 20) {}

  Sequence make(const Prompt& prompt, std::string_view policy = "full") {
    return Sequence(prompt, KvCache(pools_, *backend_, shape_), parse_policy(policy));
  }

  // Tokens 1, 2, then four image tokens (9) of a picture with this pixel, then 3, 4.
  static Prompt picture(float pixel, std::vector<int32_t> tail = {3, 4}) {
    Prompt p;
    p.tokens = {1, 2, 9, 9, 9, 9};
    p.tokens.insert(p.tokens.end(), tail.begin(), tail.end());
    p.spans = {{.begin = 2, .end = 6, .image = 0, .first_row = 0}};
    p.images.resize(1);
    p.images[0].allocate(1, 1, 1);
    p.images[0].tensor().as<float>()[0] = pixel;
    return p;
  }

  static void compute(Sequence& s) {
    std::vector<TokenRun> runs;
    s.next_runs(INT32_MAX, runs);
    std::vector<int32_t> tokens, positions;
    for (int32_t t = runs[0].begin; t < runs[0].end; ++t) {
      tokens.push_back(t);
      positions.push_back(s.tokens()[static_cast<size_t>(t)].meta.t);
    }
    s.append(0, {tokens, positions}, nullptr);
    s.finish_step(runs);
    s.apply_policy();
  }

  std::unique_ptr<Backend> backend_;
  KvShape shape_;
  PagePools pools_;
};

TEST_F(SequenceTest, KeepsTheCommonPrefix) {
  Sequence s = make(picture(0.5f));
  compute(s);
  s.add_token(7);
  compute(s);
  EXPECT_EQ(s.continue_with(picture(0.5f, {3, 4, 7, 8})), 9);
  EXPECT_EQ(s.n_pending(), 1);
  compute(s);
  EXPECT_EQ(s.cache().n_slots(0, 0), 10);
  EXPECT_EQ(s.continue_with(picture(0.5f, {5})), 6);
  EXPECT_EQ(s.cache().n_slots(0, 0), 6);
}

TEST_F(SequenceTest, AnotherPictureIsNotTheSamePrompt) {
  Sequence s = make(picture(0.5f));
  compute(s);
  EXPECT_EQ(s.continue_with(picture(0.6f)), 2);  // only what stands before the picture
  EXPECT_EQ(s.cache().n_slots(0, 0), 2);
}

// Black pictures of other proportions can have the same pixels after padding; their rows do not mean the same.
TEST_F(SequenceTest, EqualPixelsInAnotherGridAreAnotherPicture) {
  Prompt wide = picture(0.0f), high = picture(0.0f);
  wide.images[0].tile_rows = high.images[0].tile_cols = 1;
  wide.images[0].tile_cols = high.images[0].tile_rows = 2;
  Sequence s = make(std::move(wide));
  compute(s);
  EXPECT_EQ(s.continue_with(std::move(high)), 2);
}

TEST_F(SequenceTest, AGeneratedImageTokenIsNoPicture) {
  Prompt text;
  text.tokens = {1, 2};
  Sequence s = make(text);
  for (int i = 0; i < 4; ++i) s.add_token(9);
  compute(s);
  if (s.n_pending() > 0) compute(s);
  ASSERT_EQ(s.n_done(), 6);
  EXPECT_EQ(s.continue_with(picture(0.5f)), 2);
}

TEST_F(SequenceTest, OneTokenIsLeftForLogits) {
  Sequence s = make(picture(0.5f));
  compute(s);
  EXPECT_EQ(s.continue_with(picture(0.5f)), 7);
  EXPECT_EQ(s.n_pending(), 1);
}

TEST_F(SequenceTest, AnEvictedCacheIsKeptOnlyWhole) {
  Sequence s = make(picture(0.5f), "streaming:sinks=1,window=3");
  compute(s);
  ASSERT_EQ(s.n_visible(0, 0), 4);
  EXPECT_EQ(s.continue_with(picture(0.5f, {3, 4, 5})), 8);  // goes on
  compute(s);
  EXPECT_EQ(s.continue_with(picture(0.5f, {3, 6})), 0);  // slots of the common prefix are gone
  EXPECT_EQ(s.cache().n_slots(0, 0), 0);
}

TEST_F(SequenceTest, RewindForgetsTokens) {
  Sequence s = make(picture(0.5f));
  compute(s);
  s.rewind(3);
  EXPECT_EQ(s.n_tokens(), 3);
  EXPECT_EQ(s.n_done(), 3);
  EXPECT_EQ(s.cache().n_slots(0, 0), 3);
}

// Positions need not be indices: several tokens may share one (M-RoPE), the next is one more than the largest.
TEST_F(SequenceTest, TheNextPositionIsOneMoreThanTheLargest) {
  Sequence s = make(picture(0.5f));
  EXPECT_EQ(s.next_position(), 8);
  s.add_token(7);
  EXPECT_EQ(s.tokens().back().meta.t, 8);
  s.rewind(4);
  EXPECT_EQ(s.next_position(), 4);
}

TEST_F(SequenceTest, KnowsWhatEveryTokenIs) {
  Prompt prompt = picture(0.5f);
  prompt.classes.assign(8, TokenClass::kOther);
  prompt.classes[0] = TokenClass::kSpecial;
  const Sequence s = make(prompt);
  EXPECT_EQ(s.tokens()[0].token_class, TokenClass::kSpecial);
  EXPECT_EQ(s.tokens()[2].id, 9);
  EXPECT_EQ(s.tokens()[2].meta.modality, Modality::kVision);
  EXPECT_EQ(s.tokens()[5].meta.segment, 0);
  EXPECT_EQ(s.tokens()[6].meta.segment, -1);
  EXPECT_EQ(prompt.shape().n_after_vision, 2);
  EXPECT_EQ(prompt.shape().n_vision, 4);
}

}  // namespace
}  // namespace vlcache
