// Continuing a conversation on its KV: what may be kept and what must not be.
#include "engine/sequence/sequence.h"

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
    return Sequence(prompt, KvCache(pools_, *backend_, shape_), parse_policy(policy), HiddenShape{});
  }

  // Tokens 1, 2, then four image tokens (9) of an image with this pixel, then 3, 4.
  static Prompt image_prompt(float pixel, std::vector<int32_t> tail = {3, 4}) {
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
    std::vector<int32_t> tokens;
    for (int32_t t = runs[0].begin; t < runs[0].end; ++t) tokens.push_back(t);
    s.append(0, tokens, nullptr);
    s.finish_step(runs, /*last_layer=*/true);
    s.apply_policy();
  }

  std::unique_ptr<Backend> backend_;
  KvShape shape_;
  PagePools pools_;
};

TEST_F(SequenceTest, KeepsTheCommonPrefix) {
  Sequence s = make(image_prompt(0.5f));
  compute(s);
  s.add_token(7);
  compute(s);
  EXPECT_EQ(s.continue_with(image_prompt(0.5f, {3, 4, 7, 8})), 9);
  EXPECT_EQ(s.n_pending(), 1);
  compute(s);
  EXPECT_EQ(s.cache().n_slots(0, 0), 10);
  EXPECT_EQ(s.continue_with(image_prompt(0.5f, {5})), 6);
  EXPECT_EQ(s.cache().n_slots(0, 0), 6);
}

TEST_F(SequenceTest, AnotherImageIsNotTheSamePrompt) {
  Sequence s = make(image_prompt(0.5f));
  compute(s);
  EXPECT_EQ(s.continue_with(image_prompt(0.6f)), 2);  // only what stands before the image
  EXPECT_EQ(s.cache().n_slots(0, 0), 2);
}

// Black images of other proportions can have the same pixels after padding; their rows do not mean the same.
TEST_F(SequenceTest, EqualPixelsInAnotherGridAreAnotherImage) {
  Prompt wide = image_prompt(0.0f), high = image_prompt(0.0f);
  wide.images[0].tile_rows = high.images[0].tile_cols = 1;
  wide.images[0].tile_cols = high.images[0].tile_rows = 2;
  Sequence s = make(std::move(wide));
  compute(s);
  EXPECT_EQ(s.continue_with(std::move(high)), 2);
}

TEST_F(SequenceTest, GeneratedImageTokenIsNotAnImage) {
  Prompt text;
  text.tokens = {1, 2};
  Sequence s = make(text);
  for (int i = 0; i < 4; ++i) s.add_token(9);
  compute(s);
  if (s.n_pending() > 0) compute(s);
  ASSERT_EQ(s.n_done(), 6);
  EXPECT_EQ(s.continue_with(image_prompt(0.5f)), 2);
}

TEST_F(SequenceTest, OneTokenIsLeftForLogits) {
  Sequence s = make(image_prompt(0.5f));
  compute(s);
  EXPECT_EQ(s.continue_with(image_prompt(0.5f)), 7);
  EXPECT_EQ(s.n_pending(), 1);
}

TEST_F(SequenceTest, EvictedCacheIsReusedOnlyAsAWhole) {
  Sequence s = make(image_prompt(0.5f), "streaming:sinks=1,window=3");
  compute(s);
  ASSERT_EQ(s.n_visible(0, 0), 4);
  EXPECT_EQ(s.continue_with(image_prompt(0.5f, {3, 4, 5})), 8);  // continues
  compute(s);
  EXPECT_EQ(s.continue_with(image_prompt(0.5f, {3, 6})), 0);  // slots of the common prefix were evicted
  EXPECT_EQ(s.cache().n_slots(0, 0), 0);
}

TEST_F(SequenceTest, RewindRemovesTokens) {
  Sequence s = make(image_prompt(0.5f));
  compute(s);
  s.rewind(3);
  EXPECT_EQ(s.n_tokens(), 3);
  EXPECT_EQ(s.n_done(), 3);
  EXPECT_EQ(s.cache().n_slots(0, 0), 3);
}

// Positions need not be indices: several tokens may share one (M-RoPE), the next is one more than the largest.
TEST_F(SequenceTest, NextPositionIsOneMoreThanTheLargest) {
  Sequence s = make(image_prompt(0.5f));
  EXPECT_EQ(s.next_position(), 8);
  s.add_token(7);
  EXPECT_EQ(s.tokens().back().meta.position.t, 8);
  s.rewind(4);
  EXPECT_EQ(s.next_position(), 4);
}

TEST_F(SequenceTest, DescribesEveryToken) {
  Prompt prompt = image_prompt(0.5f);
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

// A policy that needs the prompt repeated: instruction and pieces with the image's rows after the position where it
// acts, the question put aside; no way of ending that leaves a trace.
TEST_F(SequenceTest, ReplaysThePromptAfterItself) {
  Prompt prompt = image_prompt(0.5f, {3, 4});
  prompt.query_aware = false;
  prompt.replay_text = {.first = {50, 51}, .later = {60}, .suffix = {70}, .max_positions = 0};
  Sequence s(prompt, KvCache(pools_, *backend_, shape_), parse_policy("kvzip:piece=16,sinks=1", "2"), HiddenShape{});
  ASSERT_TRUE(s.replays_prompt());
  const auto ids = [&] {
    std::vector<int32_t> all;
    for (const TokenInfo& token : s.tokens()) all.push_back(token.id);
    return all;
  };
  const auto begin = [&] {
    s.policy_hooks(*backend_);
    std::vector<TokenRun> runs;
    s.next_runs(INT32_MAX, runs);
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].end, 6);
    const std::vector<int32_t> tokens{0, 1, 2, 3, 4, 5};
    s.append(0, tokens, nullptr);
    s.finish_step(runs, true);
    EXPECT_TRUE(s.look_ahead([] { return -1; }));
  };
  const auto expect_no_trace = [&] {
    EXPECT_FALSE(s.looks_ahead());
    EXPECT_EQ(ids(), prompt.tokens);
    EXPECT_EQ(s.images().spans().size(), 1u);
    EXPECT_EQ(s.next_position(), 8);
    EXPECT_LE(s.cache().n_slots(0, 0), 6);
  };
  begin();
  EXPECT_TRUE(s.looks_ahead());
  EXPECT_EQ(ids(), (std::vector<int32_t>{1, 2, 9, 9, 9, 9, 50, 51, 70, 2, 9, 9, 9, 9}));
  EXPECT_EQ(s.tokens()[10].meta.modality, Modality::kVision);
  EXPECT_EQ(s.tokens()[13].meta.position.t, 13);
  ASSERT_EQ(s.images().spans().size(), 2u);
  EXPECT_EQ(s.images().spans()[1].begin, 10);
  EXPECT_EQ(s.images().spans()[1].end, 14);
  EXPECT_EQ(s.images().spans()[1].first_row, 0);
  std::vector<TokenRun> runs;
  s.next_runs(5, runs);
  EXPECT_EQ(runs[0].begin, 6);
  EXPECT_EQ(runs[0].end, 11);
  s.discard_lookahead();
  expect_no_trace();
  s.release();
  begin();
  s.release();  // in the middle
  expect_no_trace();
  EXPECT_EQ(s.n_pending(), 8);
  begin();
  EXPECT_EQ(s.continue_with(prompt), 6);
  expect_no_trace();
}

TEST(Lookaheads, ArePiecesThatFitTheContext) {
  const auto pieces = [](int32_t n, const ReplayText& text) {
    std::vector<Capture> captures(4);
    Capture &replay = captures[0], &draft = captures[1], &again = captures[2], &other = captures[3];
    draft.request.ahead = 3;
    replay.request.replay = again.request.replay = {.piece = 100, .n_sinks = 2, .n_skipped = 4};
    other.request.replay = {.piece = 1000};
    std::vector<std::vector<int32_t>> all;
    for (const Lookahead& r : list_lookaheads(captures, n, text)) all.push_back({r.n_draft, r.begin, r.end});
    const bool room = text.max_positions == 0 || n < 327;
    for (const Capture* c : {&replay, &again, &other}) EXPECT_EQ(c->problem.empty(), room);
    EXPECT_EQ(draft.problem, "");
    return all;
  };
  using All = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(pieces(250, {}), (All{{3, 0, 0}, {0, 4, 104}, {0, 104, 204}, {0, 204, 250}, {0, 0, 250}}));
  EXPECT_EQ(pieces(3, {}), (All{{3, 0, 0}, {0, 0, 3}}));
  // 400 positions hold 250 tokens, an instruction of 1 + 8 + 1, and pieces of 140.
  const ReplayText text{.first = {1}, .later = {2}, .suffix = {3}, .max_positions = 400};
  EXPECT_EQ(pieces(250, text), (All{{3, 0, 0}, {0, 4, 104}, {0, 104, 204}, {0, 204, 250}, {0, 0, 140}, {0, 140, 250}}));
  EXPECT_EQ(pieces(327, text), (All{{3, 0, 0}}));  // 63 are left
  EXPECT_EQ(pieces(326, text).back(), (std::vector<int32_t>{0, 320, 326}));
}

}  // namespace
}  // namespace vlcache
