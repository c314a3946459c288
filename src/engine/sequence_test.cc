// Continuing a conversation on its KV: what may be kept and what must not.
#include "engine/sequence.h"

#include <gtest/gtest.h>

#include "ops/factory.h"

namespace vlcache {
namespace {

class SequenceTest : public testing::Test {
 protected:
  SequenceTest()
      : backend_(make_backend("ref", DType::kF32)), pool_(backend_->kv_page_bytes(KvCodec::kF32, 32), 1024) {}

  Sequence make(Prompt prompt, std::string_view mode = "full") {
    return {std::move(prompt), KvCache(pool_, *backend_, KvShape::uniform(1, 1, 32, KvCodec::kF32)),
            parse_cache_mode(mode)};
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
    std::vector<int32_t> tokens;
    for (int32_t t = s.n_computed(); t < s.n_tokens(); ++t) tokens.push_back(t);
    s.cache().append(0, tokens, tokens);
    s.advance(s.n_pending());
  }

  std::unique_ptr<Backend> backend_;
  PagePool pool_;
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

TEST_F(SequenceTest, OneTokenIsLeftForLogits) {
  Sequence s = make(picture(0.5f));
  compute(s);
  EXPECT_EQ(s.continue_with(picture(0.5f)), 7);
  EXPECT_EQ(s.n_pending(), 1);
}

TEST_F(SequenceTest, AnEvictedCacheIsKeptOnlyWhole) {
  Sequence s = make(picture(0.5f), "streaming:sinks=1,window=3");
  compute(s);
  ASSERT_EQ(s.cache().n_slots(0, 0), 4);
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
  EXPECT_EQ(s.n_computed(), 3);
  EXPECT_EQ(s.cache().n_slots(0, 0), 3);
}

}  // namespace
}  // namespace vlcache
