// Images at other positions, recomputed in part, compared with prompts that were computed whole.
#include "engine/reuse/loaded_image_source.h"

#include <numeric>

#include "engine/reuse/reuse_testing.h"
#include "reuse/choose/reuse_chooser.h"

namespace vlcache {
namespace {

struct ReusedPrompt {
  std::vector<float> logits;
  std::unique_ptr<Sequence> sequence;
};

ReusedPrompt reuse(Engine& engine, std::vector<int32_t> tokens, int32_t begin, const std::shared_ptr<ImageKv>& image,
                   std::vector<double> shares, int32_t chunk = 512) {
  LoadedImageSource images(engine.backend(), engine.model().ropes());
  ReusedPrompt reused{.logits = {}, .sequence = image_sequence(engine, std::move(tokens))};
  images.add(*reused.sequence, {{image_at(begin)}}, image, RecomputePlan(std::move(shares)));
  images.supply(*reused.sequence);
  reused.logits = compute(engine, *reused.sequence, chunk, &images);
  return reused;
}

std::vector<float> whole(Engine& engine, std::vector<int32_t> tokens) {
  const auto s = image_sequence(engine, std::move(tokens));
  return compute(engine, *s, 512);
}

// After the same prefix the KV is the same: any plan gives the whole prompt's answer.
TEST(LoadedImageSource, LogitsAreUnchangedAfterTheSamePrefix) {
  for (const std::string_view backend : backend_names()) {
    for (const char* model_type : {"llama", "mistral", "qwen2_5_vl_text", "qwen3_vl_text"}) {
      SCOPED_TRACE(std::string(backend) + " " + model_type);
      const auto engine = make_engine(4, backend, 64 << 20, model_type);
      const auto image = record_image(*engine, image_prompt(20, 1), 20, 33);
      const std::vector<float> expected = whole(*engine, image_prompt(20, 1));
      for (const std::vector<double>& shares :
           {std::vector<double>{0, 0, 0, 0}, {1, 1, 1, 1}, {1, 0.5, 0.1, 0}, {0.1, 0.1, 0.1, 0.1}}) {
        for (const int32_t chunk : {512, 17}) {
          const ReusedPrompt reused = reuse(*engine, image_prompt(20, 1), 20, image, shares, chunk);
          expect_close(reused.logits, expected);
          EXPECT_EQ(reused.sequence->cache().n_slots(3, 0), 100);
        }
      }
    }
  }
}

// One layer: K and V come from the embeddings alone, so an image may be at any position. With M-RoPE, moving an image
// moves time, row and column by one number: its record is the same to the bit wherever it was made.
TEST(LoadedImageSource, RotatedKeysEqualKeysComputedAtThatPosition) {
  for (const std::string_view backend : backend_names()) {
    for (const char* model_type : {"llama", "qwen2_5_vl_text", "qwen3_vl_text"}) {
      SCOPED_TRACE(std::string(backend) + " " + model_type);
      const auto engine = make_engine(1, backend, 64 << 20, model_type);
      const auto image = record_image(*engine, image_prompt(20, 1), 20, 512);
      const ImageRows here(*engine, *image, 0);
      for (const int32_t before : {0, 3, 77, 300}) {
        const std::vector<float> expected = whole(*engine, image_prompt(before, 5));
        expect_close(reuse(*engine, image_prompt(before, 5), before, image, {0}).logits, expected);
        const ImageRows there(*engine, *record_image(*engine, image_prompt(before, 5), before, 512), 0);
        EXPECT_EQ(here.k, there.k) << before;
        EXPECT_EQ(here.v, there.v) << before;
      }
    }
  }
}

// A unit of a video lies at a time of its own: its keys turn by another number in time than in row and column.
TEST(LoadedImageSource, UnitsMoveInTimeAlone) {
  for (const char* model_type : {"qwen2_5_vl_text", "qwen3_vl_text"}) {
    SCOPED_TRACE(model_type);
    const auto engine = make_engine(1, "auto", 64 << 20, model_type);
    const auto image = record_image(*engine, image_prompt(20, 1), 20, 512);
    const std::vector<int32_t> tokens = image_prompt(33, 5);
    std::vector<std::vector<float>> answers;
    for (const int32_t later : {0, 2, 150}) {
      Prompt prompt = engine->prepare_tokens(tokens);
      prompt.positions = image_positions(prompt.n_tokens(), 33, 33 + kImage, 10);
      for (int32_t t = 33; t < prompt.n_tokens(); ++t) {
        Position& p = prompt.positions[static_cast<size_t>(t)];
        p = t < 33 + kImage ? Position{p.t + later, p.h, p.w} : p.moved(later);
      }
      const auto whole = engine->new_sequence(prompt, parse_policy("full")),
                 reused = engine->new_sequence(prompt, parse_policy("full"));
      LoadedImageSource images(engine->backend(), engine->model().ropes());
      images.add(*reused, {{image_at(33)}}, image, RecomputePlan({0}));
      images.supply(*reused);
      answers.push_back(compute(*engine, *whole, 512));
      expect_close(compute(*engine, *reused, 512, &images), answers.back());
    }
    EXPECT_GT(distance(answers[0], answers[2]), 1e-3f);  // time counts
  }
}

// Recomputed tokens do not come from the image: with all of it recomputed, its record does not matter, and the fewer
// layers load, the nearer is the answer.
TEST(LoadedImageSource, RecomputedTokensFollowTheNewContext) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = make_engine(4, backend, 64 << 20, backend == "ref" ? "llama" : "qwen3_vl_text");
    const auto image = record_image(*engine, image_prompt(20, 1), 20, 512);
    const std::vector<int32_t> other = image_prompt(45, 5);
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

// What one source's steps recompute is supplied by the next: the first half in all layers, as if it were computed
// again; the rest in the first two.
TEST(LoadedImageSource, RecomputedTokensCanBeKept) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = make_engine(4, backend, 64 << 20, backend == "ref" ? "llama" : "qwen3_vl_text");
    const auto image = record_image(*engine, image_prompt(20, 1), 20, 512);
    const std::vector<int32_t> other = image_prompt(45, 5);
    for (const std::vector<double>& shares :
         {std::vector<double>{0.5, 0.5, 0.5, 0.5}, {1, 1, 0.5, 0.5}, {1, 1, 1, 1}}) {
      const std::vector<float> expected = reuse(*engine, other, 45, image, shares).logits;
      for (const int32_t chunk : {512, 17}) {
        LoadedImageSource images(engine->backend(), engine->model().ropes());
        const auto s = image_sequence(*engine, other);
        images.add(*s, {{image_at(45)}}, image, RecomputePlan(shares));
        images.keep_recomputed();
        images.supply(*s);
        compute(*engine, *s, chunk, &images);
        s->take_back_supplied();
        images.set_depths(std::vector<int32_t>(kImage, 0));
        images.supply(*s);
        EXPECT_EQ(s->n_pending(), kAfterImage);
        expect_close(compute(*engine, *s, chunk, &images), expected);
      }
    }
  }
}

// Tiles of an image with words between them: rows 0 to 29, five tokens of text, rows 30 to 49.
TEST(LoadedImageSource, ImageCanBeSplitIntoPieces) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const auto engine = make_engine(3, backend);
    std::vector<int32_t> tokens = image_prompt(20, 1);
    const std::vector<int32_t> words = random_tokens(5, 3);
    tokens.insert(tokens.begin() + 50, words.begin(), words.end());
    const std::vector<ImageSpan> spans{{.begin = 20, .end = 50, .image = 0, .first_row = 0, .rows = {}},
                                       {.begin = 55, .end = 75, .image = 0, .first_row = 30, .rows = {}}};
    auto image = std::make_shared<ImageKv>(engine->kv_shape(), ImageKvForm(), kImage);
    ImageRecorder recorder;
    recorder.place(recorder.add(image), 20, 0, 30);
    recorder.place(0, 55, 30, 20);
    const auto whole = make_sequence(*engine, tokens);
    const std::vector<float> expected = compute(*engine, *whole, 41, &recorder);
    ASSERT_TRUE(recorder.complete(0));
    for (const std::vector<double>& shares : {std::vector<double>{0, 0, 0}, {0.9, 0.7, 0.2}, {0.5, 0.5, 0.5}}) {
      LoadedImageSource images(engine->backend(), engine->model().ropes());
      const auto s = make_sequence(*engine, tokens);
      images.add(*s, spans, image, RecomputePlan(shares));
      images.supply(*s);
      EXPECT_EQ(s->n_pending(), 55 + static_cast<int32_t>(50 * shares[0]));
      expect_close(compute(*engine, *s, 23, &images), expected);
    }
  }
}

// A sequence that continues without its images: after the prompt as if it had computed them, within it from the
// position of the first of them.
TEST(LoadedImageSource, AreDiscardedWithTheirSource) {
  const auto engine = make_engine(3, "ref");
  const auto image = record_image(*engine, image_prompt(20, 1), 20, 512);
  for (const int32_t n_rows : {100, 12, 30}) {
    const auto s = make_sequence(*engine, image_prompt(9, 5));
    {
      LoadedImageSource images(engine->backend(), engine->model().ropes());
      images.add(*s, {{image_at(9)}}, image, RecomputePlan({0.5, 0.2, 0}));
      images.supply(*s);
      EXPECT_FALSE(s->n_pending() == s->n_tokens());
      step(*engine, *s, n_rows, &images);
      s->forget_source();
    }
    if (n_rows == 100) {
      EXPECT_EQ(s->n_pending(), 0);
      EXPECT_FALSE(s->exact());
      s->rewind(9);
      EXPECT_TRUE(s->exact());
    } else {
      EXPECT_EQ(s->n_done(), 9);
      EXPECT_EQ(s->n_pending(), s->n_tokens() - 9);
      EXPECT_TRUE(s->exact());
      expect_close(compute(*engine, *s, 512), whole(*engine, image_prompt(9, 5)));
    }
  }
}

TEST(LoadedImageSource, FreeingKvRestartsThePrompt) {
  const auto engine = make_engine(3, "ref");
  const auto image = record_image(*engine, image_prompt(20, 1), 20, 512);
  const std::vector<int32_t> other = image_prompt(9, 5);
  LoadedImageSource images(engine->backend(), engine->model().ropes());
  const auto s = image_sequence(*engine, other);
  images.add(*s, {{image_at(9)}}, image, RecomputePlan({0.5, 0.2, 0}));
  images.supply(*s);
  EXPECT_EQ(s->n_pending(), 9 + 25 + 30);
  EXPECT_EQ(images.n_recomputed(0), 25);
  EXPECT_EQ(images.n_recomputed(1), 10);
  const std::vector<float> once = compute(*engine, *s, 16, &images);
  s->release();
  EXPECT_EQ(s->n_pending(), 9 + 25 + 30);
  EXPECT_EQ(compute(*engine, *s, 16, &images), once);
}

TEST(ReuseChooser, PlansHaveTheRequestedMean) {
  for (const double r : {0.0, 0.01, 0.025, 0.1, 0.5, 0.8, 1.0}) {
    const RecomputePlan plan = parse_reuse_chooser("vlcache:r=" + std::to_string(r))->plan(22, 2304);
    EXPECT_NEAR(plan.mean(), r, 1e-12);
    EXPECT_NEAR(parse_reuse_chooser("static:r=" + std::to_string(r))->plan(22, 2304).mean(), r, 1e-12);
  }
  const RecomputePlan plan = parse_reuse_chooser("vlcache")->plan(5, 1000);
  for (int32_t layer = 0; layer < 5; ++layer) EXPECT_EQ(plan.n_tokens(layer, 1000), 45 - 10 * layer);
  EXPECT_EQ(parse_reuse_chooser("mpic:k=7")->plan(3, 300).n_tokens(2, 300), 7);
  EXPECT_EQ(parse_reuse_chooser("mpic")->plan(3, 20).n_tokens(2, 20), 20);
  EXPECT_EQ(parse_reuse_chooser("vlcache:r=0.1")->name(), "vlcache:r=0.1");
  for (const char* wrong : {"", "vlcash", "vlcache:r=2", "vlcache:k=2", "mpic:k=-1", "static:r=x", "exact"}) {
    EXPECT_THROW(parse_reuse_chooser(wrong), Error) << wrong;
  }
}

TEST(RecomputePlan, RecomputesDeepestWhereScoresAreHighest) {
  const RecomputePlan plan({0.8, 0.4, 0.2, 0});
  EXPECT_EQ(plan.depths(5), (std::vector<int32_t>{3, 2, 1, 1, 0}));
  EXPECT_EQ(plan.depths(std::vector<double>{0.5, 2, 0.1, 2, 1}), (std::vector<int32_t>{1, 3, 0, 2, 1}));
  EXPECT_EQ(plan.depths(std::vector<double>(5, 0)), plan.depths(5));
}

TEST(RecomputePlan, SharesNeverIncrease) {
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
