// What is left of pictures: a table by hand, and answers of the model that ships.
#include "engine/kept_image_tokens.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "engine/batch.h"
#include "engine/engine_testing.h"

namespace vlcache {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Slots as a table says; the last layer has none of its own.
class TableSlots final : public PolicySlots {
 public:
  std::vector<std::vector<std::vector<int32_t>>> tokens_of;  // [layer][head]
  std::vector<float> bias_of;                                // of the first head

  int32_t n_layers() const override { return static_cast<int32_t>(tokens_of.size()); }
  int32_t n_kv_heads(int32_t layer) const override { return static_cast<int32_t>(at(layer).size()); }
  std::span<const int32_t> tokens(int32_t layer, int32_t head) const override {
    return at(layer)[static_cast<size_t>(head)];
  }
  std::span<const int32_t> positions(int32_t layer, int32_t head) const override { return tokens(layer, head); }
  std::span<const float> bias(int32_t layer, int32_t head) const override {
    return layer == 0 && head == 0 ? std::span<const float>(bias_of) : std::span<const float>();
  }
  int32_t window(int32_t) const override { return 0; }
  int64_t page_bytes(int32_t) const override { return 0; }
  int32_t head_dim(int32_t) const override { return 0; }
  void read(int32_t, int32_t, const Tensor&, const Tensor&) const override {}
  int32_t n_visible(int32_t, int32_t) const override { return 0; }
  int32_t n_behind_prompt(int32_t, int32_t) const override { return 0; }
  std::span<float> plane(int32_t, int32_t, int32_t) override { return {}; }
  void hide(int32_t, int32_t, int32_t) override {}

 private:
  const std::vector<std::vector<int32_t>>& at(int32_t layer) const { return tokens_of[static_cast<size_t>(layer)]; }
};

std::unique_ptr<Engine> tinydoc() {
  return Engine::load(std::string(VLCACHE_SOURCE_DIR) + "/models/tinydoc",
                      {.dtype = DType::kF32, .kv_memory_bytes = 64 << 20});
}

Prompt one_picture(const Engine& engine, int64_t width = 448, int64_t height = 448) {
  return engine.prepare_raw("<s>User: <image>\nWhat is the TOTAL?\nAssistant:", {Image(width, height)});
}

TEST(KeptImageTokens, CountHeadsByTheTokensOfTheirSlots) {
  const auto engine = tinydoc();
  const Prompt prompt = one_picture(*engine);
  const ImageSpan& span = prompt.spans.at(0);
  const int32_t a = span.begin, b = span.begin + 1, last = span.end - 1;
  TableSlots slots;
  slots.tokens_of = {{{0, a, b, last}, {a, -3, last, span.end}}, {{a, span.end + 1000}, {}}, {}};
  slots.bias_of = {0, 0, kHidden, 0.7f};
  const auto images = kept_image_tokens(engine->model().config(), prompt, slots);
  ASSERT_EQ(images.size(), 1u);
  ASSERT_EQ(images[0].shares.size(), 256u);
  EXPECT_FLOAT_EQ(images[0].shares[0], 0.75f);
  EXPECT_FLOAT_EQ(images[0].shares[1], 0.0f);  // hidden
  EXPECT_FLOAT_EQ(images[0].shares[255], 0.5f);
  EXPECT_FLOAT_EQ(std::accumulate(images[0].shares.begin(), images[0].shares.end(), 0.0f), 1.25f);
}

TEST(KeptImageTokens, LieWhereThePatchesAre) {
  const auto engine = tinydoc();
  TableSlots slots;
  slots.tokens_of = {{{0}}};
  const auto images = kept_image_tokens(engine->model().config(), one_picture(*engine), slots);
  ASSERT_EQ(images.size(), 1u);
  EXPECT_EQ(images[0].width, 448);
  EXPECT_EQ(images[0].height, 448);
  ASSERT_TRUE(images[0].rects.at(17));
  EXPECT_EQ(*images[0].rects[17], (PixelRect{.left = 28, .top = 28, .right = 56, .bottom = 56}));
}

TEST(KeptImageTokens, NothingWhereThereIsNothingToSay) {
  const auto engine = tinydoc();
  TableSlots slots;
  slots.tokens_of = {{{}, {}}};
  EXPECT_TRUE(kept_image_tokens(engine->model().config(), one_picture(*engine), slots).empty());
  slots.tokens_of = {{{0, 1}}};
  EXPECT_TRUE(kept_image_tokens(engine->model().config(), engine->prepare_raw("<s>A?", {}), slots).empty());
}

double mean_share(Engine& engine, std::string_view policy, std::string_view budget, bool asked = true) {
  Request request;
  request.prompt = one_picture(engine);
  request.policy = parse_policy(policy, budget);
  request.options.max_tokens = 3;
  request.report_kept = asked;
  const GenerateResult result = generate(engine, std::move(request));
  if (result.kv.images.empty()) return -1;
  const std::vector<float>& shares = result.kv.images[0].shares;
  return std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
}

TEST(KeptImageTokens, ComeWithAnAnswerThatWasAskedForThem) {
  const auto engine = tinydoc();
  EXPECT_EQ(mean_share(*engine, "full", ""), 1.0);
  EXPECT_EQ(mean_share(*engine, "full", "", /*asked=*/false), -1);
  EXPECT_NEAR(mean_share(*engine, "window", "0.3"), 0.23, 0.05);  // the last 30 %, of which some is text
  // The others never reach the language model.
  const PromptShape shape = one_picture(*engine).shape();
  const int32_t n_seen = parse_policy("hired", "0.3")->n_seen(shape) - (shape.n_tokens - shape.n_vision);
  EXPECT_DOUBLE_EQ(mean_share(*engine, "hired", "0.3"), n_seen / 256.0);
}

}  // namespace
}  // namespace vlcache
