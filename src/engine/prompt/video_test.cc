// Videos in prompts, compared with transformers, and videos that no prompt can have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "base/error.h"
#include "engine/engine_testing.h"
#include "engine/prompt/video_testing.h"
#include "engine/reuse/image_origin.h"
#include "engine/scheduler/scheduler.h"
#include "io/chat/chat_templates.h"
#include "tests/fixture_cases.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using Encoder = CacheReport::Image::Encoder;
using Source = CacheReport::Image::Source;

class Videos : public testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  Request request(const Engine& engine, ReuseOptions reuse = {}) const {
    Request request;
    request.prompt = fixture_.prompt(engine);
    request.policy = parse_policy("full");
    request.reuse = std::move(reuse);
    request.options.max_tokens = static_cast<int32_t>(greedy_.size());
    request.options.ignore_eos = true;
    return request;
  }

  // The logits of every token of the prompt, [n, vocab], and the answer's tokens.
  std::vector<float> logits(Engine& engine, int32_t chunk, std::vector<int32_t>* answer) const {
    Request asked = request(engine);
    const int64_t vocab = engine.model().config().text.vocab_size;
    std::vector<float> all(static_cast<size_t>(asked.prompt.n_tokens() * vocab));
    asked.callbacks.on_logits = [&](int32_t first, const Tensor& rows) {
      std::copy_n(rows.as<float>(), rows.numel(), all.begin() + first * vocab);
    };
    Scheduler scheduler(engine, {.prefill_chunk = chunk});
    const RequestId id = scheduler.add(std::move(asked));
    while (scheduler.step()) {
    }
    const GenerateResult result = scheduler.remove(id);
    EXPECT_FALSE(result.error) << result.error->what();
    *answer = ids_of(result);
    return all;
  }

  const VideoFixture fixture_{GetParam().first, GetParam().second};
  const std::vector<int32_t> greedy_ = fixture_.ids("greedy");
};

// The largest difference of rows, relative to the largest value.
double largest_difference(std::span<const float> found, const Tensor& expected, std::span<const int32_t> rows) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t c = 0; c < expected.row_size(); ++c) {
      const double e = expected.row<float>(static_cast<int64_t>(i))[c],
                   f = found[static_cast<size_t>(rows[i] * expected.row_size() + c)];
      worst = std::isnan(f) ? INFINITY : std::max(worst, std::abs(e - f));
      largest = std::max(largest, std::abs(e));
    }
  }
  return worst / largest;
}

std::vector<double> probabilities(const std::vector<double>& logits) {
  double sum = 0;
  std::vector<double> p;
  for (const double x : logits) sum += std::exp(x);
  for (const double x : logits) p.push_back(std::exp(x) / sum);
  return p;
}

TEST_P(Videos, TokensAndPositionsAreTransformers) {
  const auto engine = fixture_.load({.backend = "ref", .dtype = DType::kF32});
  const Prompt prompt = fixture_.prompt(*engine);
  EXPECT_EQ(prompt.tokens, fixture_.ids("input_ids"));
  const Tensor expected = fixture_.expected.get("position_ids");
  const auto n = static_cast<size_t>(expected.row_size());
  ASSERT_EQ(prompt.positions.size(), n);
  int32_t last = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto* p = expected.as<int32_t>() + i;
    EXPECT_EQ(prompt.positions[i], (Position{p[0], p[n], p[2 * n]})) << "token " << i;
    last = std::max({last, p[0], p[n], p[2 * n]});
  }
  EXPECT_EQ(prompt.n_positions(), last + 1);
  const RenderedChat chat = engine->chat_templates()->render(fixture_.json["messages"], engine->tokenizer());
  EXPECT_EQ(engine->prepare_rendered(chat, fixture_.media()).tokens, prompt.tokens);
  // A unit is an image of its own: rows of two frames, and pixels that are made again.
  size_t image = 0;
  for (const auto& item : fixture_.json["media"]) {
    const int64_t n_units = item.contains("grid") ? item["grid"][0].get<int64_t>() : 1;
    for (int64_t k = 0; k < n_units; ++k, ++image) {
      ASSERT_LT(image, prompt.images.size());
      const std::optional<VideoUnit>& unit = prompt.images[image].unit;
      EXPECT_EQ(unit.has_value(), item.contains("grid"));
      EXPECT_EQ(unit && unit->first, item.contains("grid") && k == 0);
      EXPECT_EQ(prompt.images[image].n_frames, item.contains("grid") ? 2 : 1);
    }
  }
  EXPECT_EQ(image, prompt.images.size());
  Prompt copy = prompt.copy();
  for (size_t i = 0; i < image; ++i) EXPECT_EQ(image_key(copy.with_pixels(i)), prompt.contents[i]);
}

TEST_P(Videos, RowsOfUnitsAreTransformers) {
  for (const std::string_view backend : backend_names()) {
    const auto engine = fixture_.load({.backend = std::string(backend), .dtype = DType::kF32});
    Prompt prompt = fixture_.prompt(*engine);
    const Tensor expected = fixture_.expected.get("vision_features");
    std::vector<float> found;
    for (size_t i = 0; i < prompt.images.size(); ++i) {
      const VisionOutput rows = engine->model().encode_image(prompt.with_pixels(i));
      found.insert(found.end(), rows.embeds.as<float>(), rows.embeds.as<float>() + rows.embeds.numel());
    }
    ASSERT_EQ(std::ssize(found), expected.numel());
    std::vector<int32_t> all;
    for (int32_t i = 0; i < expected.rows(); ++i) all.push_back(i);
    EXPECT_LE(largest_difference(found, expected, all), 1e-5) << backend;
  }
}

TEST_P(Videos, LogitsAndAnswersAreTransformersForAnyChunk) {
  const Tensor rows = fixture_.expected.get("rows"), expected = fixture_.expected.get("logits");
  const std::span at(rows.as<int32_t>(), static_cast<size_t>(rows.rows()));
  for (const std::string_view backend : backend_names()) {
    const auto engine = fixture_.load({.backend = std::string(backend), .dtype = DType::kF32});
    std::vector<float> whole;
    for (const int32_t chunk : {512, 64, 7, 1}) {
      SCOPED_TRACE(std::string(backend) + ", chunks of " + std::to_string(chunk));
      std::vector<int32_t> answer;
      const std::vector<float> found = logits(*engine, chunk, &answer);
      EXPECT_LE(largest_difference(found, expected, at), 1e-5);
      EXPECT_EQ(answer, greedy_);
      if (only_ref()) break;  // slow: sanitized builds compute it once
    }
  }
}

TEST_P(Videos, Bf16IsNearTransformersBf16) {
  if (only_ref()) GTEST_SKIP() << "compared by the fast backend";
  const auto engine = fixture_.load({.dtype = DType::kBF16});
  std::vector<int32_t> answer;
  const std::vector<float> found = logits(*engine, 512, &answer);
  const Tensor rows = fixture_.expected.get("rows"), expected = fixture_.expected.get("logits_bf16");
  const auto vocab = expected.row_size();
  for (int64_t i = 0; i < rows.rows(); ++i) {
    std::vector<double> theirs, ours;
    for (int64_t c = 0; c < vocab; ++c) {
      theirs.push_back(to_float(expected.row<bf16>(i)[c]));
      ours.push_back(found[static_cast<size_t>(rows.as<int32_t>()[i] * vocab + c)]);
    }
    const std::vector<double> p = probabilities(theirs), q = probabilities(ours);
    double kl = 0;
    for (size_t c = 0; c < p.size(); ++c) kl += p[c] * std::log(p[c] / q[c]);
    EXPECT_LE(kl, 1e-3) << "row " << i;
  }
}

// Equal units, and equal images, pass through the encoder once, also where no cache holds them.
TEST_P(Videos, EqualUnitsAreEncodedOnce) {
  for (const bool cached : {true, false}) {
    const auto engine = fixture_.load({.dtype = DType::kF32});
    const GenerateResult result = generate(*engine, request(*engine, {.encoder = cached}));
    EXPECT_EQ(ids_of(result), greedy_);
    std::set<Sha256Digest> keys;
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.encoder, keys.insert(image.key).second ? Encoder::kComputed : Encoder::kHit);
    }
    EXPECT_EQ(result.cache.n_encoded(), std::ssize(keys));
  }
}

// Budgets hold, and a budget of everything changes nothing, whatever the units and the texts between them.
TEST_P(Videos, PoliciesKeepTheirBudgets) {
  const auto engine = fixture_.load({.dtype = DType::kF32});
  std::vector<const char*> policies{"vl-cache",  "kvzip", "streaming",         "snapkv",
                                    "pyramidkv", "h2o",   "expected_attention"};
  if (only_ref()) policies.resize(3);
  for (const char* policy : policies) {
    for (const char* budget : {"0.3", "1"}) {
      SCOPED_TRACE(policy + std::string(" ") + budget);
      Request asked = request(*engine);
      asked.policy = parse_policy(policy, budget);
      const int32_t n = asked.prompt.n_tokens();
      asked.options.max_tokens = budget[0] == '1' ? 8 : 1;
      const GenerateResult result = generate(*engine, std::move(asked));
      ASSERT_FALSE(result.error) << result.error->what();
      if (budget[0] == '1') {
        EXPECT_EQ(ids_of(result), std::vector(greedy_.begin(), greedy_.begin() + 8));
        continue;
      }
      int64_t n_slots = 0, n_heads = 0;
      for (const std::vector<int32_t>& layer : result.kv.slots) {
        for (const int32_t slots : layer) n_slots += slots, ++n_heads;
      }
      EXPECT_LE(n_slots, n_heads * (n * 3 / 10 + 2));
      EXPECT_GT(n_slots, 0);
    }
  }
}

// Asked again, all of it is found; each unit where the question before it is another one.
TEST_P(Videos, UnitsAreReused) {
  const auto engine = fixture_.load({.dtype = DType::kF32});
  const auto reuse = [](const char* chooser) {
    return ReuseOptions{.prefix = true, .chooser = parse_reuse_chooser(chooser), .required = true};
  };
  EXPECT_EQ(ids_of(generate(*engine, request(*engine, reuse("static:r=1")))), greedy_);
  const GenerateResult again = generate(*engine, request(*engine, reuse("static:r=1")));
  EXPECT_EQ(ids_of(again), greedy_);
  EXPECT_EQ(again.cache.n_prefix_tokens, again.n_prompt - 1);
  Request moved = request(*engine, reuse("static:r=0.1"));
  moved.prompt = engine->prepare_raw("But first. " + fixture_.json["prompt"].get<std::string>(), fixture_.media());
  const GenerateResult found = generate(*engine, std::move(moved));
  for (const CacheReport::Image& image : found.cache.images) {
    EXPECT_TRUE(image.source == Source::kRam || image.source == Source::kPrefix) << image.reason;
    EXPECT_LT(image.n_recomputed, image.n_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Videos,
                         testing::Values(std::pair("qwen2-vl-nested", 0), std::pair("qwen2-vl-nested", 1),
                                         std::pair("qwen2.5-vl-nested", 0), std::pair("qwen2.5-vl-nested", 1),
                                         std::pair("qwen3-vl-deepstack", 0), std::pair("qwen3-vl-wide", 0),
                                         std::pair("qwen3-vl-moe", 0)),
                         [](const auto& info) {
                           return test_name(info.param.first + std::string("_") + std::to_string(info.param.second));
                         });

// The same frames, played at half the speed: the same tokens and the same units at other times. What was computed of
// the one is no prefix of the other from the second unit on.
TEST(VideoTimes, OtherTimesAreAnotherPrefix) {
  const VideoFixture fixture("qwen2.5-vl-nested", 0);
  const auto& item = fixture.json["media"][0];
  const std::vector<Image> frames =
      cut_frames(load_image(fixture.dir / item["video"].get<std::string>()), item["height"].get<int64_t>());
  const auto ask = [&](Engine& engine, double fps, ReuseOptions reuse) {
    Request request;
    request.prompt = engine.prepare_raw("<|vision_start|><|video_pad|><|vision_end|>What comes next?",
                                        InputMedia({}, {video_of(frames, fps, {.all = true})}));
    request.policy = parse_policy("full");
    request.reuse = std::move(reuse);
    request.options.max_tokens = 12;
    request.options.ignore_eos = true;
    return request;
  };
  const ReuseOptions prefix{.prefix = true, .chooser = nullptr};
  const auto engine = fixture.load({.dtype = DType::kF32}), alone = fixture.load({.dtype = DType::kF32});
  generate(*engine, ask(*engine, 8, prefix));
  Request slow = ask(*engine, 4, prefix);
  EXPECT_EQ(slow.prompt.tokens, ask(*engine, 8, prefix).prompt.tokens);
  EXPECT_EQ(slow.prompt.contents, ask(*engine, 8, prefix).prompt.contents);
  EXPECT_NE(slow.prompt.positions, ask(*engine, 8, prefix).prompt.positions);
  const int32_t second = slow.prompt.spans[1].begin;
  EXPECT_EQ(slow.prompt.spans[0].end, second);
  const GenerateResult found = generate(*engine, std::move(slow));
  EXPECT_EQ(found.cache.n_prefix_tokens, second);
  EXPECT_EQ(ids_of(found), ids_of(generate(*alone, ask(*alone, 4, {}))));
  // A conversation goes on where the times are the same.
  const auto sequence = alone->new_sequence(ask(*alone, 8, {}).prompt, parse_policy("full"));
  Request first = ask(*alone, 8, {});
  first.sequence = sequence.get();
  generate(*alone, std::move(first));
  EXPECT_EQ(sequence->continue_with(ask(*alone, 4, {}).prompt), second);
  // Approximate reuse knows every unit.
  const ReuseOptions reuse{.prefix = true, .chooser = parse_reuse_chooser("static:r=0"), .required = true};
  generate(*alone, ask(*alone, 8, reuse));
  const GenerateResult loaded = generate(*alone, ask(*alone, 4, reuse));
  for (size_t i = 1; i < loaded.cache.images.size(); ++i) EXPECT_EQ(loaded.cache.images[i].source, Source::kRam) << i;
}

// A clip of one still frame and a moving part is the clip that repeats the still frame: in the texts between units, in
// positions, and in the cells that are dropped.
TEST(VideoTimes, ChangingRatesAreReadAsConstantOnes) {
  std::vector<Image> moving(9, Image(40, 30));
  for (size_t i = 0; i < moving.size(); ++i) std::ranges::fill(moving[i].rgb, static_cast<uint8_t>(20 * i));
  std::vector<Image> repeated(20, moving[0]);
  std::ranges::copy(moving.begin() + 1, moving.end(), repeated.begin() + 12);
  for (const char* model : {"qwen2.5-vl-nested", "qwen3-vl-deepstack"}) {
    const VideoFixture fixture(model, 0);
    const auto engine = fixture.load({.backend = "ref", .dtype = DType::kF32});
    for (const double prune : {0.0, 0.5}) {
      const auto prompt = [&](InputVideo video) {
        video.options.video_prune = prune;
        return engine->prepare_raw("<|vision_start|><|video_pad|><|vision_end|>?", InputMedia({}, {std::move(video)}));
      };
      InputVideo changing = video_of(moving, 9 / 5.0, {});
      changing.timing.times = {0};
      changing.timing.end = 5;
      for (int i = 0; i < 8; ++i) changing.timing.times.push_back(3 + i / 4.0);
      const Prompt found = prompt(changing), expected = prompt(video_of(repeated, 4, {}));
      EXPECT_EQ(found.tokens, expected.tokens);
      EXPECT_EQ(found.contents, expected.contents);
      EXPECT_EQ(found.positions, expected.positions);
      EXPECT_EQ(found.images.size(), 5U);
    }
    // All frames, at their own times.
    InputVideo slides = video_of({moving[0], moving[1], moving[2], moving[3]}, 1, {.all = true});
    slides.timing.times = {0, 2, 6, 6.5};
    slides.timing.end = 7;
    const Prompt prompt = engine->prepare_raw("<|vision_start|><|video_pad|><|vision_end|>?", InputMedia({}, {slides}));
    ASSERT_EQ(prompt.images.size(), 2U);
    EXPECT_EQ(prompt.images[1].unit->seconds, 6.25);
    const auto unit_time = engine->model().config().family->unit_time;
    EXPECT_EQ(prompt.images[1].unit->t, unit_time == nullptr ? 0 : unit_time(engine->model().config(), 1, 6));
  }
}

// Computed by itself, a unit lies as an image does: at one time, rows and columns as in the video.
TEST(VideoTimes, UnitsByThemselvesAreGrids) {
  const VideoFixture fixture("qwen2.5-vl-nested", 1);
  const auto engine = fixture.load({.backend = "ref", .dtype = DType::kF32});
  const Prompt prompt = fixture.prompt(*engine);
  const PromptImages images = list_images(prompt);
  for (size_t i = 0; i < images.size(); ++i) {
    const Prompt alone = origin_request(*engine, prompt, images, i).prompt;
    ASSERT_EQ(std::ssize(alone.positions), alone.n_tokens());
    const int32_t begin = alone.spans[0].begin;
    std::vector<Position> expected =
        engine->model().config().family->image_positions(engine->model().config(), prompt.images[i]);
    for (Position& p : expected) p = p.moved(begin);
    EXPECT_EQ(std::vector(alone.positions.begin() + begin, alone.positions.end()), expected) << i;
  }
}

class InvalidVideos : public testing::Test {
 protected:
  std::string error_of(const std::string& text, std::vector<InputVideo> videos) const {
    const auto prepare = [&] { engine_->prepare_raw(text, InputMedia({}, std::move(videos))); };
    return vlcache::error_of(prepare, ErrorCode::kInput);
  }
  std::string error_of(InputVideo video) const { return error_of("<|video_pad|>?", {std::move(video)}); }
  static InputVideo clip(int n = 8) {
    return video_of(std::vector<Image>(static_cast<size_t>(n), Image(40, 30)), 4, {});
  }

  const std::unique_ptr<Engine> engine_ =
      VideoFixture("qwen2.5-vl-nested", 0).load({.backend = "ref", .dtype = DType::kF32});
};

TEST_F(InvalidVideos, PlaceholdersAndVideosMustAgree) {
  EXPECT_EQ(error_of(clip()), "no error");
  EXPECT_THAT(error_of("none", {clip()}), testing::HasSubstr("0 <|video_pad|> placeholder(s) for 1 video(s)"));
  EXPECT_THAT(error_of("<|video_pad|><|video_pad|>", {clip()}), testing::HasSubstr("2 <|video_pad|> placeholder(s)"));
  EXPECT_THAT(error_of("<|image_pad|>", {clip()}), testing::HasSubstr("1 <|image_pad|> placeholder(s) for 0 image(s)"));
  EXPECT_THAT(error_of("<|video_pad|>", {}), testing::HasSubstr("1 <|video_pad|> placeholder(s) for 0 video(s)"));
  EXPECT_THROW(engine_->prepare_tokens({1, engine_->model().config().video_token_id}), Error);
}

TEST_F(InvalidVideos, FramesMustComeAsDescribed) {
  EXPECT_THAT(error_of(clip(0)), testing::HasSubstr("clip: "));
  InputVideo other = clip();
  other.width = 41;
  EXPECT_THAT(error_of(other), testing::HasSubstr("40 x 30 pixels; expected 41 x 30"));
  InputVideo broken = clip();
  broken.read = [](std::span<const int64_t>, const InputVideo::Take& take) { take(Image(40, 30)); };
  EXPECT_THAT(error_of(broken), testing::HasSubstr("clip: 1 of 4 frames could be read"));
  InputVideo wide = clip();
  wide.width = 40 * 201;
  EXPECT_THAT(error_of(wide), testing::HasSubstr("clip: "));
}

// Before a frame is read.
TEST_F(InvalidVideos, TokensMustFit) {
  const auto n_read = std::make_shared<int64_t>(0);
  InputVideo endless = video_of(std::vector<Image>(8, Image(40, 30)), 4, {}, n_read);
  endless.timing = {.n_frames = 1'000'000, .fps = 2};
  EXPECT_THAT(error_of(endless), testing::HasSubstr("more than the context of 512"));
  InputVideo bounded = video_of(std::vector<Image>(8, Image(40, 30)), 4, {}, n_read);
  bounded.options.min_tokens = bounded.options.max_tokens = 5;  // 1 x 3 or 2 x 3
  EXPECT_THAT(error_of(bounded), testing::HasSubstr("between min_image_tokens and max_image_tokens"));
  EXPECT_EQ(*n_read, 0);
  bounded.options = {.max_tokens = 6};
  const Prompt prompt = engine_->prepare_raw("<|video_pad|>?", InputMedia({}, {bounded}));
  for (const ImageSpan& span : prompt.spans) EXPECT_LE(span.end - span.begin, 6);
  EXPECT_GT(*n_read, 0);
}

TEST(VideoModels, TextsLikePlaceholdersStayText) {
  const auto engine = VideoFixture("qwen3-vl-wide", 0).load({.backend = "ref", .dtype = DType::kF32});
  const auto prepare = [&](const std::string& question) {
    using OrderedJson = nlohmann::ordered_json;
    const OrderedJson content =
        OrderedJson::array({OrderedJson{{"type", "video"}}, OrderedJson{{"type", "text"}, {"text", question}}});
    const OrderedJson messages = OrderedJson::array({OrderedJson{{"role", "user"}, {"content", content}}});
    const std::vector<Image> frames(4, Image(30, 20));
    return engine->prepare_rendered(engine->chat_templates()->render(messages, engine->tokenizer()),
                                    InputMedia({}, {video_of(frames, 2, {.all = true})}));
  };
  const Prompt plain = prepare("What?"), like_tokens = prepare("Is <|video_pad|> or <|image_pad|> a token?");
  EXPECT_EQ(like_tokens.n_vision_tokens(), plain.n_vision_tokens());
  EXPECT_EQ(like_tokens.images.size(), 2u);
}

// A setting that contradicts config.json.
TEST(VideoModels, EncoderAndSettingsAgree) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("vlcache_video_" + std::to_string(::getpid()));
  std::filesystem::copy(VideoFixture("qwen2.5-vl-nested", 0).dir, dir);
  Json settings = load_json(dir / "video_preprocessor_config.json");
  settings["temporal_patch_size"] = 3;
  std::ofstream(dir / "video_preprocessor_config.json") << settings;
  std::string error;
  try {
    Engine::load(Checkpoint(dir), {.backend = "ref", .dtype = DType::kF32});
  } catch (const Error& e) {
    error = e.what();
  }
  std::filesystem::remove_all(dir);
  EXPECT_THAT(error, testing::HasSubstr("temporal_patch_size: expected 2, the encoder's, found 3"));
}

TEST(VideoModels, OthersRefuseByName) {
  for (const char* model : {"smolvlm2-split", "glm-ocr-two", "paddleocr-vl-nested", "llava-clip"}) {
    const auto engine = Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/" + model),
                                     {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
    try {
      engine->prepare_raw("a", InputMedia({}, {video_of({Image(30, 30)}, 1, {})}));
      ADD_FAILURE() << model;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(engine->model().config().model_type + ") takes no video; pass frames"));
    }
  }
}

}  // namespace
}  // namespace vlcache
