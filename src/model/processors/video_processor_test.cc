// Frames and sizes against transformers' video processors, units, and settings that no processor has.
#include "model/processors/video_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "io/image/pattern_testing.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using Kind = VideoProcessor::Kind;

VideoProcessor from_settings(const Json& settings) {
  const bool third = settings.value("video_processor_type", "") == "Qwen3VLVideoProcessor";
  return {third ? Kind::kQwen3 : Kind::kQwen2, JsonObject(settings, "settings")};
}

std::string settings_error(const Json& settings) {
  return error_of([&] { from_settings(settings); }, ErrorCode::kInput);
}

// As the fixture has them: long lists in short.
Json shown(const std::vector<int64_t>& indices) {
  if (indices.size() <= 12) return indices;
  return {{"n", indices.size()},
          {"sum", std::accumulate(indices.begin(), indices.end(), int64_t{0})},
          {"last", std::vector<int64_t>(indices.end() - 8, indices.end())}};
}

TEST(VideoProcessor, FramesAndSizesAreTransformers) {
  const Json groups = load_json(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/images/videos.json");
  ASSERT_EQ(groups.size(), 4u);
  for (const Json& group : groups) {
    SCOPED_TRACE(group["settings"].dump());
    const VideoProcessor processor = from_settings(group["settings"]);
    ASSERT_GE(group["cases"].size(), 100u);
    for (const Json& c : group["cases"]) {
      const VideoTiming video = {.n_frames = c[0].get<int64_t>(), .fps = c[1].get<double>()};
      const std::vector<int64_t> indices =
          processor.sample(video, {.fps = c[2].get<double>(), .max_frames = c[3].get<int64_t>()});
      EXPECT_EQ(shown(indices), c[6]) << c;
      const Extent size =
          processor.extent({.height = c[5].get<int64_t>(), .width = c[4].get<int64_t>()}, std::ssize(indices), {});
      EXPECT_EQ((std::pair{size.height, size.width}), (std::pair{c[7].get<int64_t>(), c[8].get<int64_t>()})) << c;
    }
  }
}

TEST(VideoProcessor, ShortAndChosenVideos) {
  for (const char* type : {"Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"}) {
    const VideoProcessor processor = from_settings({{"video_processor_type", type}});
    EXPECT_EQ(processor.sample({.n_frames = 1, .fps = 30}, {}), std::vector<int64_t>{0});
    EXPECT_EQ(processor.sample({.n_frames = 5, .fps = 30}, {.all = true}), (std::vector<int64_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(processor.sample({.n_frames = 48, .fps = 0}, {}), processor.sample({.n_frames = 48, .fps = 24}, {}));
    EXPECT_EQ(processor.sample({.n_frames = 40, .fps = 10}, {.fps = 1e300}).size(), 40u);
    EXPECT_EQ(processor.sample({.n_frames = 40, .fps = 1e-3}, {.max_frames = 1}).size(), 1u);
    EXPECT_THROW(processor.sample({.n_frames = 0, .fps = 30}, {}), Error);
    EXPECT_THROW(processor.sample({.n_frames = 1 << 20, .fps = 30}, {.all = true}), Error);
    for (const double fps : {std::numeric_limits<double>::infinity(), 1e8, 1e-9}) {
      EXPECT_THROW(processor.sample({.n_frames = 9, .fps = fps}, {}), Error);
      EXPECT_THROW(processor.sample({.n_frames = 9, .fps = fps}, {.all = true}), Error);
    }
    EXPECT_THROW(processor.extent({.height = 10, .width = 2010}, 4, {}), Error);  // 201 : 1
  }
}

// A clip of changing rate is read as the same clip at a constant rate, which repeats its frames.
TEST(VideoProcessor, FramesAreChosenByTheirTimes) {
  const VideoTiming even{.n_frames = 160, .fps = 20};
  VideoTiming changing{.n_frames = 81, .fps = 81 / 8.0, .times = {0}, .end = 8};  // 4 s of one frame, then 20 a second
  for (int i = 0; i < 80; ++i) changing.times.push_back(4 + i / 20.0);
  for (const char* type : {"Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"}) {
    for (const Json& settings : {Json::object(), Json::object({{"num_frames", 10}}), Json::object({{"fps", 7.3}})}) {
      Json all = settings;
      all["video_processor_type"] = type;
      const VideoProcessor processor = from_settings(all);
      for (const VideoSampling& sampling : {VideoSampling{}, {.fps = 1}, {.fps = 60}, {.max_frames = 9}}) {
        const ShownFrames expected = processor.choose(even, sampling), found = processor.choose(changing, sampling);
        ASSERT_EQ(found.indices.size(), expected.indices.size());
        EXPECT_NEAR(found.fps, expected.fps, 1e-9);
        for (size_t i = 0; i < found.indices.size(); ++i) {
          EXPECT_EQ(found.indices[i], std::max<int64_t>(0, expected.indices[i] - 79)) << i;
          EXPECT_NEAR(found.seconds[i], expected.seconds[i], 1e-9);
        }
      }
    }
  }
}

TEST(VideoProcessor, ChosenFramesHaveTheirOwnTimes) {
  const VideoProcessor processor = from_settings({{"video_processor_type", "Qwen3VLVideoProcessor"}});
  const auto choose = [&](std::vector<double> times, double end, const VideoSampling& sampling = {}) {
    const auto n = std::ssize(times);
    return processor.choose({.n_frames = n, .fps = static_cast<double>(n) / end, .times = std::move(times), .end = end},
                            sampling);
  };
  // A frame that is chosen once has its own time, though the grid has another.
  const ShownFrames own = choose({0, 0.3, 0.5, 1.6}, 2);
  EXPECT_EQ(own.indices, (std::vector<int64_t>{0, 2, 2, 3}));
  EXPECT_THAT(own.seconds, testing::Pointwise(testing::DoubleNear(1e-9), std::vector<double>{0, 0.5, 1.2, 1.6}));
  // Slides: no more places than frames of the shortest one's length.
  EXPECT_EQ(choose({0, 100, 110}, 120).indices, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2}));
  EXPECT_EQ(choose({0, 0.1, 0.2}, 10).indices.size(), 20U) << "the last one is shown long";
  EXPECT_EQ(choose({0, 0.1, 0.2}, 10).indices[1], 2);
  EXPECT_EQ(choose({0, 5}, 5.1).indices.back(), 1) << "and so short";
  EXPECT_EQ(choose({0, 0, 1, 1, 5}, 6).indices, (std::vector<int64_t>{1, 3, 3, 3, 3, 4})) << "two at one time";
  // All of them, whatever their times.
  const ShownFrames all = choose({0, 0.1, 7}, 9, {.all = true});
  EXPECT_EQ(all.indices, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(all.seconds, (std::vector<double>{0, 0.1, 7}));
  EXPECT_TRUE(all.own_times);
  // Of a constant rate, numbers say it.
  const ShownFrames even = processor.choose({.n_frames = 9, .fps = 2}, {.all = true});
  EXPECT_EQ(even.seconds.back(), 4);
  EXPECT_FALSE(even.own_times);
  EXPECT_THROW(choose({0, 1, 1e6}, 1e9), Error);
  EXPECT_EQ(choose({0, 1e-12, 30}, 60).indices.size(), 120U);
}

// Bounds count the tokens of a unit, also of an odd number of frames.
TEST(VideoProcessor, BoundsAreOfAUnit) {
  for (const char* type : {"Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"}) {
    const VideoProcessor processor = from_settings({{"video_processor_type", type}, {"patch_size", 4}});
    const auto n_tokens = [&](int64_t n_frames, const TokenBounds& bounds) {
      const Extent size = processor.extent({.height = 300, .width = 410}, n_frames, bounds);
      return size.height * size.width / 64;
    };
    for (const int64_t n_frames : {1, 2, 5, 7, 8}) {
      for (const int64_t most : {20, 57, 100}) EXPECT_LE(n_tokens(n_frames, {.most = most}), most) << type << n_frames;
      EXPECT_GE(n_tokens(n_frames, {.least = 3000}), 3000);
      EXPECT_LT(n_tokens(n_frames, {.fewest = true}), n_tokens(n_frames, {}));
    }
  }
}

TEST(VideoProcessor, UnitsHoldFramesOneAfterTheOther) {
  const VideoProcessor processor = from_settings({{"image_mean", 0}, {"image_std", 1}, {"rescale_factor", 1.0}});
  std::vector<Image> frames = {pattern(56, 28), pattern(56, 28)};
  for (uint8_t& value : frames[1].rgb) value ^= 0x80;
  const ImageTiles both = processor.unit(frames, {.height = 100, .width = 200});
  EXPECT_EQ((std::vector{both.n_tiles, both.n_frames, both.height, both.width}), (std::vector<int64_t>{1, 2, 28, 56}));
  EXPECT_EQ(both.shown, (std::vector<PixelRect>{{.right = 200, .bottom = 100}}));
  for (const size_t frame : {0, 1}) {
    for (const int64_t i : {0, 5, 56 * 28 - 1}) {
      for (const int64_t c : {0, 1, 2}) {
        EXPECT_EQ(both.tensor().as<float>()[(3 * static_cast<int64_t>(frame) + c) * 56 * 28 + i],
                  static_cast<float>(frames[frame].rgb[static_cast<size_t>(3 * i + c)]));
      }
    }
  }
  const std::vector<Image> twice = {frames[0], frames[0]};
  EXPECT_EQ(processor.unit(std::span(frames).first(1), {.height = 100, .width = 200}),
            processor.unit(twice, {.height = 100, .width = 200}));  // the last frame is repeated
}

TEST(VideoProcessor, SettingsAreValidated) {
  EXPECT_EQ(settings_error({{"fps", nullptr}, {"num_frames", 8}, {"max_pixels", 100000}}), "no error");
  EXPECT_THAT(settings_error({{"fps", 0}}), testing::HasSubstr("fps"));
  EXPECT_THAT(settings_error({{"fps", "fast"}}), testing::HasSubstr("fps"));
  EXPECT_THAT(settings_error({{"max_frames", 1}}), testing::HasSubstr("max_frames"));
  EXPECT_THAT(settings_error({{"max_frames", -1}}), testing::HasSubstr("max_frames"));
  EXPECT_THAT(settings_error({{"temporal_patch_size", 0}}), testing::HasSubstr("temporal_patch_size"));
  EXPECT_THAT(settings_error({{"size", {{"longest_edge", -5}}}}), testing::HasSubstr("longest_edge"));
  EXPECT_THAT(settings_error({{"image_std", 0}}), testing::HasSubstr("image_std"));
}

}  // namespace
}  // namespace vlcache
