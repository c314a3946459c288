// Images of which some tokens are kept: the others are missing, as if they had been evicted.
#include "engine/reuse/loaded_image_source.h"
#include "engine/reuse/reuse_testing.h"
#include "reuse/image/image_keep.h"

namespace vlcache {
namespace {

constexpr int32_t kBefore = 45;

const ImageKvForm kForm{.share = 0.3, .scorer = "key_diff"};

std::shared_ptr<const ImageKv> kept_image(Engine& engine) {
  return keep_best(engine.backend(), engine.kv_shape(), kForm, *record_image(engine, image_prompt(20, 1), 20, 512));
}

struct Reused {
  explicit Reused(Engine& engine, std::vector<double> shares, std::string_view policy = "full",
                  std::string_view budget = "")
      : images(engine.backend(), engine.model().ropes()),
        image(kept_image(engine)),
        sequence(make_sequence(engine, image_prompt(kBefore, 5), policy, budget)) {
    images.add(*sequence, {{image_at(kBefore)}}, image, RecomputePlan(std::move(shares)));
    images.supply(*sequence);
  }
  LoadedImageSource images;
  std::shared_ptr<const ImageKv> image;
  std::unique_ptr<Sequence> sequence;
};

bool is_kept(const ImageKv& image, int32_t layer, int32_t token) {
  return token < kBefore || token >= kBefore + kImage || image.row_of(layer, token - kBefore) >= 0;
}

// One layer, whose K and V come from the embeddings alone: the last token sees what it would see of a whole prompt from
// which these tokens were evicted.
TEST(KeptImages, EqualAPromptWithTheOtherTokensEvicted) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = make_engine(1, backend);
    Reused reused(*engine, {0});
    std::vector<int32_t> tokens = image_prompt(kBefore, 5);
    const int32_t last = tokens.back();
    tokens.pop_back();
    const auto whole = make_sequence(*engine, tokens);
    compute(*engine, *whole, 512);
    KeepPlan plan;
    KeepPlan::Head head;
    for (int32_t t = 0; t < whole->n_tokens(); ++t) {
      if (is_kept(*reused.image, 0, t)) head.keep.push_back(t);
    }
    EXPECT_EQ(std::ssize(head.keep), kBefore + 15 + kAfterImage - 1);
    plan.layers = {{head, head}};
    const auto evicted = whole->fork(parse_policy("full"), plan);
    evicted->add_token(last);
    const std::vector<float> expected = compute(*engine, *evicted, 1);
    expect_close(compute(*engine, *reused.sequence, 512, &reused.images), expected);
    evicted->rewind(0);
    EXPECT_GT(distance(compute(*engine, *make_sequence(*engine, image_prompt(kBefore, 5)), 512), expected), 1e-4f);
  }
}

// A layer has the image's tokens that it computes, and the kept ones.
TEST(KeptImages, IncludeTheRecomputedTokens) {
  std::vector<float> expected;
  for (const std::string_view backend : backend_names()) {
    const auto engine = make_engine(4, backend);
    for (const int32_t chunk : {512, 17}) {
      SCOPED_TRACE(std::string(backend) + " " + std::to_string(chunk));
      Reused reused(*engine, {1, 0.2, 0.2, 0});
      const std::vector<float> logits = compute(*engine, *reused.sequence, chunk, &reused.images);
      if (expected.empty()) expected = logits;
      expect_close(logits, expected);
      const Sequence& s = *reused.sequence;
      for (int32_t layer = 0; layer < 4; ++layer) {
        const int32_t n_computed = std::array{50, 10, 10, 0}[static_cast<size_t>(layer)];
        std::vector<int32_t> tokens;
        for (int32_t t = 0; t < s.n_tokens(); ++t) {
          if (is_kept(*reused.image, layer, t) || (t >= kBefore && t < kBefore + n_computed)) tokens.push_back(t);
        }
        for (int32_t h = 0; h < kKvHeads; ++h) {
          EXPECT_TRUE(std::ranges::equal(s.cache().slot_tokens(layer, h), tokens)) << layer;
          EXPECT_TRUE(std::ranges::equal(s.cache().slot_places(layer, h), tokens)) << layer;
        }
      }
      reused.sequence->forget_source();
      EXPECT_FALSE(s.exact());
      EXPECT_EQ(s.n_pending(), 0);
      reused.sequence->rewind(kBefore);
      EXPECT_TRUE(s.exact());
    }
  }
}

// A policy finds fewer slots than tokens, as after an eviction, and continues from there.
TEST(KeptImages, MayBeCompressedFurther) {
  const auto engine = make_engine(3, only_ref() ? "ref" : "cpu");
  for (const char* policy : {"snapkv:w=8", "vl-cache", "key_diff+pyramid", "pointer@draft:ahead=4+global", "am:w=16",
                             "window+uniform", "expected_attention", "tova/tova"}) {
    SCOPED_TRACE(policy);
    Reused reused(*engine, {0.2, 0.1, 0}, policy, "0.2");
    Sequence& s = *reused.sequence;
    compute(*engine, s, 33, &reused.images);
    s.forget_source();
    EXPECT_LE(n_slots(kept_tokens(s)), 3 * kKvHeads * 26);  // a fifth of 125 tokens, rounded up
    for (int32_t i = 0; i < 5; ++i) {
      s.add_token(i);
      EXPECT_FALSE(compute(*engine, s, 1).empty());
    }
  }
}

}  // namespace
}  // namespace vlcache
