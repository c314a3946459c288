// Images are encoded in steps, between which other requests decode.
#include <cstring>

#include "engine/reuse/stored_images_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

using Encoder = CacheReport::Image::Encoder;

constexpr int kImages = 8;

class Encoding : public StoredImages {
 protected:
  Encoding() : StoredImages("llava-next-llama") { tiers_.clear(); }  // its images have several tiles

  // A question of a few words, answered with n_answer tokens.
  Request words(Engine& engine, int32_t n_answer) {
    Request request;
    request.prompt = engine.prepare_raw("some words", {});
    request.policy = parse_policy("full");
    request.options.max_tokens = n_answer;
    request.options.ignore_eos = true;
    request.callbacks.on_token = [this](const GeneratedToken&) { ++n_decoded_; };
    return request;
  }
  // About n images, no two the same; each takes a step of the encoder, which has one layer here, for every tile.
  Request with_images(Engine& engine, int n) const {
    std::string text;
    std::vector<Image> images;
    for (int i = 0; i < n; ++i) {
      text += "<image>";
      images.push_back(load_image(fixture_ / "image-0.png"));
      for (uint8_t& value : images.back().rgb) value ^= static_cast<uint8_t>(8 * i);
    }
    Request request;
    request.prompt = engine.prepare_raw(text + "\nWhat is the TOTAL?", std::move(images));
    request.policy = parse_policy("full");
    request.options.max_tokens = 4;
    request.options.ignore_eos = true;
    return request;
  }
  std::vector<int32_t> answer(int n_images) const {
    const std::unique_ptr<Engine> e = engine();
    return ids(generate(*e, with_images(*e, n_images)));
  }
  static void finish(Scheduler& scheduler, RequestId id) {
    while (!scheduler.done(id)) scheduler.step();
  }

  int n_decoded_ = 0;
};

// Tiles encoded one by one equal tiles encoded in groups.
TEST_F(Encoding, StepLengthDoesNotChangeTheResult) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EngineOptions options = engine_options();
    options.dtype = dtype;
    const std::unique_ptr<Engine> e = Engine::load(Checkpoint(fixture_), options);
    Request asked = with_images(*e, 1);
    const ImageTiles& image = asked.prompt.with_pixels(0);
    ASSERT_GT(image.n_tiles, 2);
    const VisionOutput expected = e->model().encode_image(image);
    Model::Encoding encoding = e->model().begin_encoding(image, nullptr, /*tile_by_tile=*/true);
    int n_steps = 1;
    while (encoding.step()) ++n_steps;
    EXPECT_EQ(n_steps, image.n_tiles);  // of one layer
    const VisionOutput found = encoding.finish();
    ASSERT_EQ(found.embeds.bytes(), expected.embeds.bytes());
    EXPECT_EQ(std::memcmp(found.embeds.data, expected.embeds.data, static_cast<size_t>(found.embeds.bytes())), 0);
  }
}

// No time at all: one step of the encoder beside each token.
TEST_F(Encoding, OtherRequestsDecodeBetweenSteps) {
  const std::unique_ptr<Engine> e = engine();
  Scheduler scheduler(*e, {.max_step_ms = 1e-6});
  const RequestId decoding = scheduler.add(words(*e, 200));
  while (n_decoded_ < 3) scheduler.step();
  Request asked = with_images(*e, kImages);
  const auto n_tiles = static_cast<int>(asked.prompt.images[0].n_tiles);
  int n_before = -1;
  asked.callbacks.on_prefill = [&](int32_t, int32_t) {
    if (n_before < 0) n_before = n_decoded_;
  };
  const RequestId encoded = scheduler.add(std::move(asked));
  n_decoded_ = 0;
  finish(scheduler, encoded);
  EXPECT_GE(n_before, kImages * n_tiles);
  EXPECT_LE(n_before, kImages * n_tiles + 4);
  const GenerateResult result = scheduler.remove(encoded);
  EXPECT_EQ(ids(result), answer(kImages));
  EXPECT_GT(result.timings.vision_ms, 0);
  finish(scheduler, decoding);
  EXPECT_EQ(ids(scheduler.remove(decoding)), ids(generate(*e, words(*e, 200))));
}

// Prompts of other requests do not wait for all images of one request.
TEST_F(Encoding, AlternatesWithPrompts) {
  const std::unique_ptr<Engine> e = engine();
  Scheduler scheduler(*e, {.max_step_ms = 1e-6});
  scheduler.add(words(*e, 200));
  while (n_decoded_ < 3) scheduler.step();
  const RequestId encoded = scheduler.add(with_images(*e, kImages));
  scheduler.step();
  const RequestId other = scheduler.add(words(*e, 1));
  for (int i = 0; i < 4; ++i) scheduler.step();
  EXPECT_TRUE(scheduler.done(other));
  EXPECT_FALSE(scheduler.done(encoded));
  finish(scheduler, encoded);
  EXPECT_EQ(ids(scheduler.remove(encoded)), answer(kImages));
}

TEST_F(Encoding, AnImageOfTwoRequestsIsEncodedOnce) {
  const std::unique_ptr<Engine> e = engine();
  Scheduler scheduler(*e, {.max_step_ms = 1e-6});
  scheduler.add(words(*e, 200));
  while (n_decoded_ < 3) scheduler.step();
  const RequestId one = scheduler.add(with_images(*e, kImages)), two = scheduler.add(with_images(*e, kImages));
  finish(scheduler, one);
  finish(scheduler, two);
  const GenerateResult first = scheduler.remove(one), second = scheduler.remove(two);
  EXPECT_EQ(ids(first), answer(kImages));
  EXPECT_EQ(ids(second), ids(first));
  for (const CacheReport::Image& image : first.cache.images) EXPECT_EQ(image.encoder, Encoder::kComputed);
  for (const CacheReport::Image& image : second.cache.images) EXPECT_EQ(image.encoder, Encoder::kHit);
}

// A request may be interrupted anywhere while it encodes: by its client, or by a request of higher priority.
TEST_F(Encoding, CanBeInterrupted) {
  const std::unique_ptr<Engine> e = engine();
  const std::vector<int32_t> expected = answer(kImages);
  for (int n_before = 1; n_before < kImages + 4; ++n_before) {
    e->kv().reset();
    n_decoded_ = 0;
    Scheduler scheduler(*e, {.max_running = 2, .max_step_ms = 1e-6});
    Request first = words(*e, 100);
    first.priority = 1;
    scheduler.add(std::move(first));
    while (n_decoded_ < 3) scheduler.step();
    const RequestId left = scheduler.add(with_images(*e, kImages));
    for (int i = 0; i < n_before; ++i) scheduler.step();
    EXPECT_EQ(scheduler.remove(left).finish_reason, FinishReason::kCancelled);
    const RequestId waits = scheduler.add(with_images(*e, kImages));
    for (int i = 0; i < n_before; ++i) scheduler.step();
    Request urgent = words(*e, 2);
    urgent.priority = 2;
    const RequestId passes = scheduler.add(std::move(urgent));
    finish(scheduler, passes);
    finish(scheduler, waits);
    EXPECT_EQ(ids(scheduler.remove(waits)), expected) << n_before;
  }
}

}  // namespace
}  // namespace vlcache
