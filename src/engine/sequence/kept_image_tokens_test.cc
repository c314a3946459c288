// Image tokens that are left: a table by hand, and answers of a small model.
#include "engine/sequence/kept_image_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <numeric>

#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Slots as given by a table; the last layer has none of its own.
class TableSlots final : public PolicySlots {
 public:
  std::vector<std::vector<std::vector<int32_t>>> tokens_of;  // [layer][head]
  std::vector<float> bias_of;                                // of the first head

  int32_t n_layers() const override { return static_cast<int32_t>(tokens_of.size()); }
  int32_t n_kv_heads(int32_t layer) const override { return static_cast<int32_t>(at(layer).size()); }
  std::span<const int32_t> tokens(int32_t layer, int32_t head) const override {
    return at(layer)[static_cast<size_t>(head)];
  }
  std::span<const int32_t> places(int32_t layer, int32_t head) const override { return tokens(layer, head); }
  std::span<const float> bias(int32_t layer, int32_t head) const override {
    return layer == 0 && head == 0 ? std::span<const float>(bias_of) : std::span<const float>();
  }
  int32_t window(int32_t) const override { return 0; }
  int64_t page_bytes(int32_t) const override { return 0; }
  int32_t head_dim(int32_t) const override { return 0; }
  void read(int32_t, int32_t, const Tensor&, const Tensor&) const override {}
  int32_t n_visible(int32_t, int32_t) const override { return 0; }
  int32_t n_visible_at_prompt_end(int32_t, int32_t) const override { return 0; }
  std::span<float> plane(int32_t, int32_t, int32_t) override { return {}; }
  void hide(int32_t, int32_t, int32_t) override {}

 private:
  const std::vector<std::vector<int32_t>>& at(int32_t layer) const { return tokens_of[static_cast<size_t>(layer)]; }
};

std::unique_ptr<Engine> tinydoc() {
  return Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/models/tinydoc"),
                      {.dtype = DType::kF32, .kv_memory_bytes = 64 << 20});
}

Prompt one_image_prompt(const Engine& engine, int64_t width = 448, int64_t height = 448) {
  return engine.prepare_raw("<s>User: <image>\nWhat is the TOTAL?\nAssistant:", std::vector{Image(width, height)});
}

TEST(KeptImageTokens, CountHeadsByTheTokensOfTheirSlots) {
  const auto engine = tinydoc();
  const Prompt prompt = one_image_prompt(*engine);
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

TEST(KeptImageTokens, HaveTheRectanglesOfTheirPatches) {
  const auto engine = tinydoc();
  TableSlots slots;
  slots.tokens_of = {{{0}}};
  const auto images = kept_image_tokens(engine->model().config(), one_image_prompt(*engine), slots);
  ASSERT_EQ(images.size(), 1u);
  EXPECT_EQ(images[0].width, 448);
  EXPECT_EQ(images[0].height, 448);
  ASSERT_TRUE(images[0].rects.at(17));
  EXPECT_EQ(*images[0].rects[17], (PixelRect{.left = 28, .top = 28, .right = 56, .bottom = 56}));
}

TEST(KeptImageTokens, AreEmptyWithoutSlotsOrImages) {
  const auto engine = tinydoc();
  TableSlots slots;
  slots.tokens_of = {{{}, {}}};
  EXPECT_TRUE(kept_image_tokens(engine->model().config(), one_image_prompt(*engine), slots).empty());
  slots.tokens_of = {{{0, 1}}};
  EXPECT_TRUE(kept_image_tokens(engine->model().config(), engine->prepare_raw("<s>A?", {}), slots).empty());
}

// A small model of random weights, whose image has 16 tokens amid the prompt.
struct KeptFixture {
  std::filesystem::path dir = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llava-clip";
  std::unique_ptr<Engine> engine = Engine::load(Checkpoint(dir), {.dtype = DType::kF32, .kv_memory_bytes = 64 << 20});
  Json about = load_json(dir / "case.json");

  Prompt prompt() const {
    return engine->prepare_raw(about["prompt"].get<std::string>(), std::vector{load_image(dir / "image-0.png")});
  }
  // Mean over the image's tokens; -1: nothing was reported.
  double mean_share(std::string_view policy, std::string_view budget, bool asked = true) const {
    Request request;
    request.prompt = prompt();
    request.policy = parse_policy(policy, budget);
    request.options.max_tokens = 3;
    request.report_kept = asked;
    const GenerateResult result = generate(*engine, std::move(request));
    if (result.kv.images.empty()) return -1;
    const std::vector<float>& shares = result.kv.images[0].shares;
    return std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  }
};

TEST(KeptImageTokens, AreReportedOnRequest) {
  const KeptFixture f;
  EXPECT_EQ(f.mean_share("full", ""), 1.0);
  EXPECT_EQ(f.mean_share("full", "", /*asked=*/false), -1);
}

TEST(KeptImageTokens, AreTheTokensThatAPolicyKeeps) {
  const KeptFixture f;
  const Prompt prompt = f.prompt();
  const ImageSpan& span = prompt.spans.at(0);
  const int32_t n_image = span.end - span.begin, k = prompt.n_tokens() - span.begin - 5;  // all but its first five
  EXPECT_DOUBLE_EQ(f.mean_share("window", std::to_string(k)), (n_image - 5.0) / n_image);
  // The other tokens never reach the language model.
  const int32_t n_seen = parse_policy("hired", "0.9")->n_seen(prompt.shape()) - (prompt.n_tokens() - n_image);
  ASSERT_GT(n_seen, 0);
  EXPECT_DOUBLE_EQ(f.mean_share("hired", "0.9"), static_cast<double>(n_seen) / n_image);
}

}  // namespace
}  // namespace vlcache
