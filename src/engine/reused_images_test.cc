// Images in other places, computed anew in part, beside prompts that were computed whole.
#include "engine/reused_images.h"

#include <numeric>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

constexpr int32_t kImage = 50;

// A prompt: `before` tokens, the image (the same ids every time: what an image's embeddings are is nobody's business
// here), and 30 tokens behind it.
std::vector<int32_t> prompt(int32_t before, uint32_t seed) {
  std::vector<int32_t> tokens = random_tokens(before, seed);
  for (const auto& part : {random_tokens(kImage, 99), random_tokens(30, 7)})
    tokens.insert(tokens.end(), part.begin(), part.end());
  return tokens;
}

std::shared_ptr<ImageKv> record(Engine& engine, std::vector<int32_t> tokens, int32_t begin, int32_t chunk) {
  auto image = std::make_shared<ImageKv>(engine.kv_shape(), kImage);
  ImageRecorder recorder;
  recorder.add(begin, image);
  const auto s = make_sequence(engine, std::move(tokens));
  EXPECT_FALSE(recorder.complete(0));
  compute(engine, *s, chunk, &recorder);
  EXPECT_TRUE(recorder.complete(0));
  return image;
}

struct Reused {
  std::vector<float> logits;
  std::unique_ptr<Sequence> sequence;
};

Reused reuse(Engine& engine, std::vector<int32_t> tokens, int32_t begin, const std::shared_ptr<ImageKv>& image,
             std::vector<double> shares, int32_t chunk = 512) {
  const TextConfig& config = engine.model().config().text;
  const RopeTable rope(config.rope, config.head_dim);
  ReusedImages images(engine.backend(), rope, RecomputePlan(std::move(shares)));
  Reused reused{.logits = {}, .sequence = make_sequence(engine, std::move(tokens))};
  images.add(*reused.sequence, begin, image);
  images.supply(*reused.sequence);
  reused.logits = compute(engine, *reused.sequence, chunk, &images);
  return reused;
}

std::vector<float> whole(Engine& engine, std::vector<int32_t> tokens) {
  const auto s = make_sequence(engine, std::move(tokens));
  return compute(engine, *s, 512);
}

// Behind the same beginning nothing was computed otherwise: any plan gives the whole prompt's answer.
TEST(ReusedImages, BehindTheSameBeginningNothingChanges) {
  for (const std::string_view backend : backend_names()) {
    for (const char* model_type : {"llama", "mistral"}) {
      SCOPED_TRACE(std::string(backend) + " " + model_type);
      const auto engine = make_engine(4, backend, 64 << 20, model_type);
      const auto image = record(*engine, prompt(20, 1), 20, 33);
      const std::vector<float> expected = whole(*engine, prompt(20, 1));
      for (const std::vector<double>& shares :
           {std::vector<double>{0, 0, 0, 0}, {1, 1, 1, 1}, {1, 0.5, 0.1, 0}, {0.1, 0.1, 0.1, 0.1}}) {
        for (const int32_t chunk : {512, 17}) {
          const Reused reused = reuse(*engine, prompt(20, 1), 20, image, shares, chunk);
          expect_close(reused.logits, expected);
          EXPECT_EQ(reused.sequence->cache().n_slots(3, 0), 100);
        }
      }
    }
  }
}

// One layer: K and V come from the embeddings alone, so an image may stand anywhere.
TEST(ReusedImages, ARotatedKeyIsTheKeyOfThatPlace) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = make_engine(1, backend);
    const auto image = record(*engine, prompt(20, 1), 20, 512);
    for (const int32_t before : {0, 3, 77, 300}) {
      const std::vector<float> expected = whole(*engine, prompt(before, 5));
      expect_close(reuse(*engine, prompt(before, 5), before, image, {0}).logits, expected);
    }
  }
}

// What is computed anew is not taken from the image: with all of it, whatever was recorded does not matter, and the
// fewer layers load, the nearer is the answer.
TEST(ReusedImages, RecomputedTokensAreThoseOfTheNewPlace) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = make_engine(4, backend);
    const auto image = record(*engine, prompt(20, 1), 20, 512);
    const std::vector<int32_t> other = prompt(45, 5);
    const std::vector<float> expected = whole(*engine, other);
    expect_close(reuse(*engine, other, 45, image, {1, 1, 1, 1}).logits, expected);
    const float none = distance(reuse(*engine, other, 45, image, {0, 0, 0, 0}).logits, expected);
    EXPECT_GT(none, 1e-4f);
    const float most = distance(reuse(*engine, other, 45, image, {1, 1, 1, 0}).logits, expected);
    EXPECT_LT(most, none);
    const float chunks = distance(reuse(*engine, other, 45, image, {1, 1, 1, 0}, 13).logits, expected);
    EXPECT_NEAR(chunks, most, 1e-4f);
  }
}

TEST(ReusedImages, GivingKvBackBeginsAnew) {
  const auto engine = make_engine(3, "ref");
  const auto image = record(*engine, prompt(20, 1), 20, 512);
  const std::vector<int32_t> other = prompt(9, 5);
  const TextConfig& config = engine->model().config().text;
  const RopeTable rope(config.rope, config.head_dim);
  ReusedImages images(engine->backend(), rope, RecomputePlan({0.5, 0.2, 0}));
  const auto s = make_sequence(*engine, other);
  images.add(*s, 9, image);
  images.supply(*s);
  EXPECT_EQ(s->n_pending(), 9 + 25 + 30);
  EXPECT_EQ(images.n_recomputed(0), 25);
  EXPECT_EQ(images.n_recomputed(1), 10);
  const std::vector<float> once = compute(*engine, *s, 16, &images);
  s->release();
  EXPECT_EQ(s->n_pending(), 9 + 25 + 30);
  EXPECT_EQ(compute(*engine, *s, 16, &images), once);
}

TEST(RecomputePlan, SharesNeverRise) {
  EXPECT_EQ(RecomputePlan({0.1, 0.1}).n_tokens(1, 30), 3);
  EXPECT_EQ(RecomputePlan({0.101}).n_tokens(0, 30), 4);
  EXPECT_EQ(RecomputePlan({1}).n_tokens(0, 7), 7);
  EXPECT_DOUBLE_EQ(RecomputePlan({1, 0.5}).mean(), 0.75);
  for (const std::vector<double>& wrong : {std::vector<double>{0.1, 0.2}, {-0.1}, {1.1}, {std::nan("")}}) {
    EXPECT_THROW(RecomputePlan{wrong}, Error);
  }
}

}  // namespace
}  // namespace vlcache
