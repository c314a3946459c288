// Image files: what is remembered of them, how many tokens a model is shown of them, and options that fail.
#include "engine/prompt/image_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "engine/engine.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

std::string fixture(const std::string& model) {
  return std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/" + model;
}

std::shared_ptr<const std::vector<std::byte>> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
}

// A model and an image (of its fixture) that is asked about.
class Reading : public testing::TestWithParam<const char*> {
 protected:
  EncodedImage image(ImageOptions options = {}, std::string owner = "") const {
    return {.bytes = bytes_, .where = "here", .limits = {}, .options = std::move(options), .owner = std::move(owner)};
  }
  Prompt prepare(std::vector<EncodedImage> images) const {
    std::string text;
    for (size_t i = 0; i < images.size(); ++i) text += "<image>";
    return engine_->prepare_raw(text + "?", std::move(images));
  }
  int32_t n_tokens(ImageOptions options) const { return prepare({image(std::move(options))}).n_vision_tokens(); }
  std::string error_of(ImageOptions options) const {
    return vlcache::error_of([&] { prepare({image(std::move(options))}); }, ErrorCode::kInput);
  }

  const std::unique_ptr<Engine> engine_ = Engine::load(
      Checkpoint(fixture(GetParam())), {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  const std::shared_ptr<const std::vector<std::byte>> bytes_ = read_file(fixture(GetParam()) + "/image-0.png");
  const Image image_ = load_image(fixture(GetParam()) + "/image-0.png");
};

TEST_P(Reading, EqualsADecodedImage) {
  Prompt decoded = engine_->prepare_raw("<image><image>?", std::vector<Image>{image_, image_});
  for (const bool known : {false, true}) {
    Prompt encoded = prepare({image(), image()});
    EXPECT_EQ(encoded.tokens, decoded.tokens);
    EXPECT_EQ(image_keys(encoded), image_keys(decoded));
    EXPECT_EQ(encoded.images[0].pixels.empty(), known);  // decoded once
    EXPECT_TRUE(encoded.images[1].pixels.empty());
    for (const size_t i : {0, 1}) {
      EXPECT_EQ(encoded.with_pixels(i), decoded.images[i]);
      encoded.let_pixels_go(i);
      EXPECT_TRUE(encoded.images[i].pixels.empty());
      EXPECT_EQ(encoded.with_pixels(i), decoded.images[i]);
    }
    encoded.replay_text.first = {7};
    Prompt other = encoded.copy();
    EXPECT_EQ(other.replay_text.first, encoded.replay_text.first);
    EXPECT_EQ(image_keys(other), image_keys(decoded));
    EXPECT_TRUE(other.images[1].pixels.empty());
    EXPECT_EQ(other.with_pixels(1), decoded.images[1]);
  }
  decoded.let_pixels_go(0);
  EXPECT_EQ(decoded.with_pixels(0), decoded.images[1]);  // they cannot be decoded again, and are still there
}

TEST_P(Reading, KnownImagesAreNotRevealedToOtherTenants) {
  prepare({image({}, "alice")});
  EXPECT_TRUE(prepare({image({}, "alice")}).images[0].pixels.empty());
  EXPECT_FALSE(prepare({image({}, "bob")}).images[0].pixels.empty());
}

TEST_P(Reading, BoundsLimitTheNumberOfTokens) {
  const int32_t finest = n_tokens({}), coarsest = n_tokens({.least_detail = true});
  EXPECT_LT(coarsest, finest);
  for (int32_t most = finest + 1; most >= coarsest; --most) {
    const int32_t n = n_tokens({.max_tokens = most});
    EXPECT_LE(n, most);
    EXPECT_EQ(n_tokens({.min_tokens = n, .max_tokens = most}), n);
    EXPECT_EQ(n_tokens({.min_tokens = n, .max_tokens = n}), n);
  }
  EXPECT_EQ(n_tokens({.min_tokens = finest}), finest);
  const std::string error = error_of({.max_tokens = coarsest - 1});
  EXPECT_THAT(error, testing::StartsWith("here: an image of "));
  EXPECT_THAT(error, testing::HasSubstr(std::to_string(coarsest)));
  EXPECT_THAT(error, testing::HasSubstr(std::to_string(finest)));
  EXPECT_NE(error_of({.min_tokens = finest + 1}), "no error");
  // Images that are shown otherwise are other images.
  EXPECT_NE(image_keys(prepare({image()})), image_keys(prepare({image({.least_detail = true})})));
}

TEST_P(Reading, ChangedSettingsAreValidated) {
  EXPECT_THAT(error_of({.settings = R"({"image_mean": 0})"}), testing::StartsWith("mm_processor_kwargs: image_mean"));
  EXPECT_THAT(error_of({.settings = R"({"size": "large"})"}), testing::StartsWith("mm_processor_kwargs"));
  EXPECT_THAT(error_of({.settings = "[]"}), testing::StartsWith("mm_processor_kwargs"));
  EXPECT_THAT(error_of({.settings = R"({"image_grid_pinpoints": []})"}),
              std::string(GetParam()).starts_with("llava-next") ? testing::StartsWith("mm_processor_kwargs")
                                                                : testing::StartsWith("no error"));
}

TEST_P(Reading, InvalidImageFailsItsOwnRequest) {
  EncodedImage broken = image();
  broken.bytes = std::make_shared<const std::vector<std::byte>>(100, std::byte{7});
  EXPECT_THROW(prepare({image(), broken}), Error);
  EXPECT_EQ(prepare({image()}).n_vision_tokens(), n_tokens({}));
}

INSTANTIATE_TEST_SUITE_P(Models, Reading, testing::Values("smolvlm-split", "llava-next-llama"),
                         [](const auto& model) { return model.index == 0 ? "SmolVlm" : "LlavaNext"; });

TEST(ImageSettings, ChangeTheOutputOfAProcessor) {
  const auto engine = Engine::load(Checkpoint(fixture("smolvlm-split")),
                                   {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  const auto bytes = read_file(fixture("smolvlm-split") + "/image-0.png");
  const auto n_tiles = [&](const std::string& settings) {
    EncodedImage image{.bytes = bytes, .where = "here", .limits = {}, .options = {.settings = settings}, .owner = ""};
    return engine->prepare_raw("<image>?", std::vector{std::move(image)}).images[0].n_tiles;
  };
  EXPECT_EQ(n_tiles(R"({"do_image_splitting": false})"), 1);
  EXPECT_EQ(n_tiles(R"({"size": {"longest_edge": 42}})"), 1);
  EXPECT_LT(n_tiles(R"({"size": {"longest_edge": 84}})"), n_tiles(""));
  EXPECT_GT(n_tiles(R"({"size": {"longest_edge": 168}})"), n_tiles(""));
}

// Where an image may have any number of tokens, bounds on them replace the processor's bounds on pixels.
TEST(ImageSettings, BoundsOnGridsOfAnySize) {
  const auto engine = Engine::load(Checkpoint(fixture("qwen3-vl-wide")),
                                   {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  const auto bytes = read_file(fixture("qwen3-vl-wide") + "/image-0.png");
  const auto n_tokens = [&](const ImageOptions& options) {
    EncodedImage image{.bytes = bytes, .where = "here", .limits = {}, .options = options, .owner = ""};
    const Prompt prompt = engine->prepare_raw("<|vision_start|><|image_pad|><|vision_end|>?", std::vector{image});
    EXPECT_EQ(prompt.n_vision_tokens(), engine->model().n_image_tokens(prompt.images[0]));
    return prompt.n_vision_tokens();
  };
  const int32_t own = n_tokens({}), least = n_tokens({.least_detail = true});
  EXPECT_LT(least, own);
  for (int32_t most = own; most >= own / 2; --most) EXPECT_LE(n_tokens({.max_tokens = most}), most);
  EXPECT_GE(n_tokens({.min_tokens = 2 * own}), 2 * own);  // enlarged
  EXPECT_EQ(n_tokens({.settings = R"({"max_pixels": 1, "min_pixels": 1})"}), n_tokens({.max_tokens = 1}));
  try {
    n_tokens({.min_tokens = own - 1, .max_tokens = own - 1});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("between min_image_tokens and max_image_tokens"));
  }
}

// An encoder of one size of image is not given another.
TEST(ImageSettings, TileSizesOfAnotherEncoderAreAnError) {
  const auto engine = Engine::load(Checkpoint(fixture("llava-clip")),
                                   {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  EncodedImage image{.bytes = read_file(fixture("llava-clip") + "/image-0.png"),
                     .where = "here",
                     .limits = {},
                     .options = {},
                     .owner = ""};
  EXPECT_EQ(engine->prepare_raw("<image>?", std::vector{image}).images.size(), 1U);
  image.options.settings = R"({"size": {"height": 2000, "width": 3}})";
  EXPECT_NO_THROW(engine->prepare_raw("<image>?", std::vector{image}));  // cut to the encoder's size
  image.options = {.least_detail = true};
  EXPECT_NO_THROW(engine->prepare_raw("<image>?", std::vector{image}));  // there is one way only
}

}  // namespace
}  // namespace vlcache
