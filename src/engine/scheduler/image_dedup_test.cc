// Images without the patches that their neighbours predict: prompts, keys of caches, answers and reuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/at.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/page_testing.h"
#include "engine/scheduler/scheduler.h"
#include "model/family.h"

namespace vlcache {
namespace {

constexpr int64_t kPageWidth = 96, kPageHeight = 64;

Image blank_page() {
  Image image;
  image.width = kPageWidth;
  image.height = kPageHeight;
  image.rgb.assign(static_cast<size_t>(kPageWidth * kPageHeight * 3), 240);
  return image;
}

// White, with two blocks of noise.
Image page_with_blocks() {
  Image image = blank_page();
  std::mt19937 random(11);
  for (int64_t y = 0; y < kPageHeight; ++y) {
    for (int64_t x = 0; x < kPageWidth * 3; ++x) {
      const bool inked = (y / 16 == 1 && x / 48 == 2) || (y / 16 == 3 && x / 48 < 2);
      if (inked) image.rgb[static_cast<size_t>(y * kPageWidth * 3 + x)] = static_cast<uint8_t>(random());
    }
  }
  return image;
}

class ImageDedup : public testing::Test {
 protected:
  static std::unique_ptr<Engine> load(int32_t prefill_chunk = 512) {
    return load_fixture_engine("qwen3-vl-deepstack", prefill_chunk);
  }
  static Prompt prepare(const Engine& engine, const Image& page, std::optional<CellDedup> dedup,
                        const std::string& before = "") {
    const EncodedImage image = encoded_page(page, {.settings = "", .dedup = dedup});
    return engine.prepare_raw(before + "<|vision_start|><|image_pad|><|vision_end|>What is it?", std::vector{image});
  }
  static Request request(Prompt prompt, const char* chooser = nullptr) {
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy("full");
    request.options.max_tokens = 6;
    request.options.ignore_eos = true;
    request.reuse.prefix = chooser == nullptr;
    if (chooser != nullptr) request.reuse.chooser = parse_reuse_chooser(chooser);
    return request;
  }
};

TEST_F(ImageDedup, KeptTokensStayWhereTheyAre) {
  const auto engine = load();
  const Image page = page_with_blocks();
  const ModelConfig& config = engine->model().config();
  Prompt whole = prepare(*engine, page, {}, "Look: "), pruned = prepare(*engine, page, CellDedup{}, "Look: ");
  ASSERT_TRUE(pruned.images[0].kept);
  const KeptCells kept = *pruned.images[0].kept;
  const int32_t begin = whole.spans[0].begin, n_kept = pruned.n_vision_tokens();
  EXPECT_EQ(n_kept, std::ssize(kept.cells));
  EXPECT_GT(kept.n_dropped, whole.n_vision_tokens() / 3);
  EXPECT_EQ(kept.n_dropped + n_kept, whole.n_vision_tokens());
  for (int32_t i = 0; i < n_kept; ++i) {
    EXPECT_EQ(pruned.positions[at(begin + i)], whole.positions[at(begin + kept.cells[at(i)])]);
    EXPECT_EQ(token_rects(config, pruned.images[0])[at(i)],
              token_rects(config, whole.images[0])[at(kept.cells[at(i)])]);
  }
  const int32_t n_after = whole.n_tokens() - whole.spans[0].end;
  EXPECT_EQ(pruned.n_tokens() - pruned.spans[0].end, n_after);
  for (int32_t i = 1; i <= n_after; ++i) {
    EXPECT_EQ(pruned.tokens[at(pruned.n_tokens() - i)], whole.tokens[at(whole.n_tokens() - i)]);
    EXPECT_EQ(pruned.positions[at(pruned.n_tokens() - i)], whole.positions[at(whole.n_tokens() - i)]);
  }
  EXPECT_EQ(pruned.n_positions(), whole.n_positions());
  // The same after its pixels are decoded again, and in a later prompt.
  pruned.let_pixels_go(0);
  EXPECT_EQ(image_key(pruned.with_pixels(0)), image_keys(pruned)[0]);
  EXPECT_EQ(prepare(*engine, page, CellDedup{}).images[0].kept, kept);
}

TEST_F(ImageDedup, TwoSettingsShareNothing) {
  const auto engine = load();
  const Image page = blank_page();
  std::vector<Sha256Digest> keys;
  for (const std::optional<CellDedup> how :
       {std::optional<CellDedup>(), std::optional(CellDedup{}), std::optional(CellDedup{.tolerance = 0.1f}),
        std::optional(CellDedup{.tolerance = 0, .weighted = true})}) {
    Prompt prompt = prepare(*engine, page, how);
    EXPECT_EQ(prompt.n_vision_tokens() == 1, how.has_value());
    EXPECT_EQ(image_keys(prepare(*engine, page, how)), image_keys(prompt));
    keys.push_back(image_keys(prompt)[0]);
    const GenerateResult result = generate(*engine, request(std::move(prompt)));
    const CacheReport::Image& image = result.cache.images[0];
    EXPECT_EQ(image.encoder, CacheReport::Image::Encoder::kComputed);
    EXPECT_EQ(image.n_dropped > 0, how.has_value());
    EXPECT_EQ(image.n_tokens + image.n_dropped, image.grid[1] * image.grid[2] / 4);
    EXPECT_LT(result.cache.n_prefix_tokens, 3);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]);
  }
}

// In pieces of any size, from the cache of prefixes and of embeddings, and where the image stands elsewhere.
TEST_F(ImageDedup, AnswersDoNotDependOnTheWay) {
  const Image page = page_with_blocks();
  std::vector<int32_t> expected;
  for (const int32_t chunk : {512, 64, 7}) {
    const auto engine = load(chunk);
    const std::vector<int32_t> first = ids_of(generate(*engine, request(prepare(*engine, page, CellDedup{}))));
    if (expected.empty()) expected = first;
    EXPECT_EQ(first, expected) << chunk;
    const GenerateResult again = generate(*engine, request(prepare(*engine, page, CellDedup{})));
    EXPECT_EQ(ids_of(again), expected);
    EXPECT_GT(again.cache.n_prefix_tokens, 0);
  }
  const auto engine = load();
  generate(*engine, request(prepare(*engine, page, CellDedup{}), "static:r=0"));
  const GenerateResult loaded = generate(*engine, request(prepare(*engine, page, CellDedup{}, "Now: "), "static:r=1"));
  EXPECT_EQ(loaded.cache.images[0].encoder, CacheReport::Image::Encoder::kHit);
  const GenerateResult reused = generate(*engine, request(prepare(*engine, page, CellDedup{}, "Then: "), "static:r=0"));
  EXPECT_TRUE(reused.cache.images[0].loaded());
  const GenerateResult other = generate(*engine, request(prepare(*engine, page, {}, "Then: "), "static:r=0"));
  EXPECT_FALSE(other.cache.images[0].loaded());
}

// An image whose cells all differ is computed as without the setting.
TEST_F(ImageDedup, NothingIsDroppedWithoutLikeness) {
  const auto engine = load();
  Image noise = blank_page();
  std::mt19937 random(5);
  for (uint8_t& value : noise.rgb) value = static_cast<uint8_t>(random());
  Prompt pruned = prepare(*engine, noise, CellDedup{}), whole = prepare(*engine, noise, {});
  EXPECT_EQ(pruned.images[0].kept->n_dropped, 0);
  EXPECT_EQ(pruned.tokens, whole.tokens);
  EXPECT_EQ(pruned.positions, whole.positions);
  EXPECT_EQ(ids_of(generate(*engine, request(std::move(pruned)))),
            ids_of(generate(*engine, request(std::move(whole)))));
}

// The slots of a token that stands for c cells have the bias log c: computed or loaded, in every layer and head.
TEST_F(ImageDedup, WeightsAreBiasesOfSlots) {
  const auto engine = load();
  const Image page = page_with_blocks();
  const CellDedup weighted{.tolerance = 0, .weighted = true};
  for (const bool loads : {false, true}) {
    Prompt prompt = prepare(*engine, page, weighted, loads ? "Then: " : "");
    const KeptCells kept = *prompt.images[0].kept;
    const ImageSpan span = prompt.spans[0];
    const auto sequence = engine->new_sequence(prompt, parse_policy("full"));
    Request asked = request(std::move(prompt), "static:r=0.3");
    asked.sequence = sequence.get();
    const GenerateResult result = generate(*engine, std::move(asked));
    EXPECT_EQ(result.cache.images[0].loaded(), loads);
    for (int32_t layer = 0; layer < engine->kv_shape().n_layers(); ++layer) {
      const KvView view = sequence->cache().view(layer);
      ASSERT_NE(view.slot_bias, nullptr);
      for (int32_t head = 0; head < view.n_kv_heads; ++head) {
        for (int32_t slot = 0; slot < view.n_slots[head]; ++slot) {
          const bool in_image = span.begin <= slot && slot < span.end;
          const float expected = in_image ? std::log(static_cast<float>(kept.counts[at(slot - span.begin)])) : 0.0f;
          ASSERT_FLOAT_EQ(view.slot_bias[int64_t{head} * view.slot_stride + slot], expected) << layer << " " << slot;
        }
      }
    }
  }
}

TEST_F(ImageDedup, IsRefusedWhereImagesAreCutIntoTiles) {
  const auto engine = Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/llava-clip"),
                                   {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  EncodedImage image{.bytes = std::make_shared<const std::vector<std::byte>>(encode_png(blank_page())),
                     .where = "here",
                     .limits = {},
                     .options = {.settings = "", .dedup = CellDedup{}},
                     .owner = "",
                     .text = ""};
  try {
    engine->prepare_raw("<image>?", std::vector{image});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInput);
    EXPECT_THAT(e.what(), testing::HasSubstr("this one (llava) takes tiles of a fixed size"));
  }
}

}  // namespace
}  // namespace vlcache
