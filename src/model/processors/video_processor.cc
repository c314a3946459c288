// Qwen2VLVideoProcessor and Qwen3VLVideoProcessor of transformers 5.23, in their order of operations: results are
// rounded where they round.
#include "model/processors/video_processor.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"
#include "model/processors/steps.h"

namespace vlcache {
namespace {

constexpr int64_t kMostFrames = int64_t{1} << 30;  // of a video: no product overflows

constexpr int64_t kMostShown = 1 << 16;               // that a file or request may ask for
constexpr double kLeastRate = 1e-4, kMostRate = 1e7;  // far beyond any video's

int64_t read_number(const JsonObject& config, std::string_view key, int64_t fallback, int64_t most) {
  const int64_t x = is_null(config, key) ? fallback : config.integer(key, fallback);
  if (x < 0 || x > most) config.fail(key, "a number from 0 to " + std::to_string(most));
  return x;
}

double number_of(int64_t x) { return static_cast<double>(x); }

int64_t floor_to(double x, int64_t step) { return static_cast<int64_t>(std::floor(x / number_of(step))) * step; }

// n indices from 0 to n_all, which is not one of them: torch.arange(0, n_all, n_all / n).int(), in f32.
std::vector<int64_t> spread_from_first(int64_t n_all, int64_t n) {
  std::vector<int64_t> indices;
  const double step = number_of(n_all) / number_of(n);
  for (int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<int64_t>(static_cast<float>(step * number_of(i)));
    indices.push_back(std::min(index, n_all - 1));
  }
  return indices;
}

// n indices from the first to the last: np.linspace(0, n_all - 1, n).round().
std::vector<int64_t> spread_to_last(int64_t n_all, int64_t n) {
  std::vector<int64_t> indices;
  const double step = number_of(n_all - 1) / number_of(std::max<int64_t>(n - 1, 1));
  for (int64_t i = 0; i < n; ++i) indices.push_back(static_cast<int64_t>(std::nearbyint(number_of(i) * step)));
  if (n > 1) indices.back() = n_all - 1;
  return indices;
}

constexpr double kShortestFrame = 1e-3;  // seconds: clips have at most 1000 frames a second
constexpr double kSameTime = 1e-6;       // seconds: less than any container's tick, more than rounding loses

// The same video at a constant rate: each frame is repeated for as long as it is shown.
VideoTiming at_constant_rate(const VideoTiming& video) {
  double shortest = video.end;
  for (size_t i = 0; i < video.times.size(); ++i) {
    const double next = i + 1 < video.times.size() ? video.times[i + 1] : video.end;
    if (next > video.times[i]) shortest = std::min(shortest, next - video.times[i]);
  }
  shortest = std::max({shortest, kShortestFrame, video.end / number_of(kMostFrames)});
  const int64_t n = std::clamp<int64_t>(static_cast<int64_t>(std::nearbyint(video.end / shortest)), 1, kMostFrames);
  return {.n_frames = n, .fps = number_of(n) / video.end};
}

// Frames in a second. Throws Error(kInput) for a video without frames, and for rates that no video has.
double checked_rate(const VideoTiming& video) {
  if (video.n_frames < 1 || video.n_frames > kMostFrames) throw Error(ErrorCode::kInput, "a video without frames");
  const double rate = video.fps > 0 ? video.fps : kUnknownFps;
  if (rate < kLeastRate || rate > kMostRate) {
    throw Error(ErrorCode::kInput, "a rate of frames outside 0.0001 to 10000000 a second");
  }
  return rate;
}

VideoProcessor::Kind kind_of(const JsonObject& config, std::string_view model_type) {
  const std::string type = config.string("video_processor_type", "");
  if (type == "Qwen3VLVideoProcessor") return VideoProcessor::Kind::kQwen3;
  if (type == "Qwen2VLVideoProcessor") return VideoProcessor::Kind::kQwen2;
  if (!type.empty()) {
    throw Error(ErrorCode::kUnsupported, config.where() + ": video_processor_type: found " + shown_json(Json(type)) +
                                             "; supported are Qwen2VLVideoProcessor, Qwen3VLVideoProcessor");
  }
  return model_type.starts_with("qwen3") ? VideoProcessor::Kind::kQwen3 : VideoProcessor::Kind::kQwen2;
}

}  // namespace

VideoProcessor::VideoProcessor(Kind kind, const JsonObject& config) : kind_(kind) {
  const bool third = kind == Kind::kQwen3;
  const int64_t cell = third ? 32 : 28, area = cell * cell;
  SmartResizeSettings settings = {.steps = {.default_to_square = false, .resample = Resample::kBicubic},
                                  .rule = {.small = third ? SmartResize::Small::kScaled : SmartResize::Small::kAsIs,
                                           .cell = cell,
                                           .least = 128 * area,
                                           .most = 768 * area}};
  if (!third) settings.steps.use_clip_statistics();
  settings = read_smart_resize(config, settings);
  settings_ = settings.steps;
  rule_ = settings.rule;
  tables_ = value_tables(settings_);
  frames_per_unit_ = read_side(config, "temporal_patch_size", 2);
  least_frames_ = read_number(config, "min_frames", 4, kMostShown);
  most_frames_ = read_number(config, "max_frames", 768, kMostShown);
  n_frames_ = read_number(config, "num_frames", 0, kMostShown);
  fps_ = is_null(config, "fps") ? 2 : config.number("fps", 2);
  if (!(fps_ > 0 && fps_ <= 1e6)) config.fail("fps", "a number above 0, 1000000 at most");
  if (most_frames_ < frames_per_unit_) config.fail("max_frames", "at least temporal_patch_size");
  caps_pixels_ = read_flag(config, "cap_pixels_per_frame", false);
  capped_tokens_ = read_number(config, "max_video_tokens", third ? 768 : 128000, kMostFrames);
}

std::vector<int64_t> VideoProcessor::sample(const VideoTiming& video, const VideoSampling& sampling) const {
  const int64_t n_all = video.n_frames, unit = frames_per_unit_;
  const double rate = checked_rate(video), fps = sampling.fps > 0 ? sampling.fps : fps_;
  if (sampling.all && n_all > kMostShown) {
    throw Error(ErrorCode::kInput, std::to_string(n_all) + " frames to show; at most " + std::to_string(kMostShown));
  }
  if (!std::isfinite(fps)) throw Error(ErrorCode::kInput, "a rate of frames outside 0.0001 to 10000000 a second");
  if (sampling.all || n_all == 1) return spread_to_last(n_all, n_all);
  const int64_t most = sampling.max_frames > 0 ? std::min(most_frames_, sampling.max_frames) : most_frames_;
  const int64_t least = std::min(least_frames_, most);
  const bool by_number = n_frames_ > 0 && sampling.fps <= 0 && sampling.max_frames <= 0;
  const auto at_rate = [&](double n) { return std::min(n, number_of(most)); };  // fits an integer
  if (kind_ == Kind::kQwen3) {
    const auto n = by_number ? n_frames_ : static_cast<int64_t>(at_rate(number_of(n_all) / rate * fps));
    return spread_to_last(n_all, std::clamp<int64_t>(std::max(n, by_number ? n : least), 1, n_all));
  }
  double n = std::nearbyint(number_of(n_frames_) / number_of(unit)) * number_of(unit);
  if (!by_number) {
    const double whole_units = number_of(floor_to(number_of(std::min(most, n_all)), unit));
    n = std::min({std::max(at_rate(number_of(n_all) / rate * fps), number_of(least)), whole_units, number_of(n_all)});
  }
  return spread_from_first(n_all, std::clamp<int64_t>(floor_to(n, unit), 1, n_all));
}

ShownFrames VideoProcessor::choose(const VideoTiming& video, const VideoSampling& sampling) const {
  const double rate = checked_rate(video);
  ShownFrames shown;
  const bool by_number = video.times.empty();
  CHECK(by_number || (std::ssize(video.times) == video.n_frames && video.times.back() <= video.end));
  if (by_number || sampling.all) {
    shown.indices = sample(video, sampling);
    for (const int64_t i : shown.indices) {
      shown.seconds.push_back(by_number ? number_of(i) / rate : video.times[static_cast<size_t>(i)]);
    }
    shown.fps = number_of(std::ssize(shown.indices)) / number_of(video.n_frames) * rate;
    shown.own_times = !by_number;
    return shown;
  }
  const VideoTiming even = at_constant_rate(video);
  for (const int64_t place : sample(even, sampling)) {
    const double time = number_of(place) / even.fps;
    const auto after = std::ranges::upper_bound(video.times, time + kSameTime);
    const auto index = std::max<int64_t>(after - video.times.begin() - 1, 0);
    const bool again = !shown.indices.empty() && shown.indices.back() == index;
    shown.indices.push_back(index);
    shown.seconds.push_back(again ? time : video.times[static_cast<size_t>(index)]);
  }
  shown.fps = number_of(std::ssize(shown.indices)) / video.end;
  return shown;
}

Extent VideoProcessor::extent(Extent frame, int64_t n_frames, const TokenBounds& bounds) const {
  if (!settings_.do_resize) return frame;
  SmartResize rule = rule_;
  const int64_t area = rule.cell * rule.cell, n = std::max(n_frames, frames_per_unit_);
  const auto floored = [&](int64_t most) {  // no cap is below this
    return std::max(most, static_cast<int64_t>(number_of(rule.least) * 1.05));
  };
  if (kind_ == Kind::kQwen3) {
    rule.n_frames = n;
    rule.n_compared =
        static_cast<int64_t>(std::nearbyint(number_of(n) / number_of(frames_per_unit_))) * frames_per_unit_;
    if (caps_pixels_) rule.most = floored(std::min(capped_tokens_ * area, rule.most / n)) * n;
    const bool bounded = bounds.least > 0 || bounds.most > 0 || bounds.fewest;
    if (bounded) rule.n_frames = rule.n_compared;  // so that each unit keeps to its bounds
  } else if (caps_pixels_) {
    const auto all = static_cast<int64_t>(number_of(capped_tokens_ * area) * 0.9);
    rule.most = floored(std::min(rule.most, all * frames_per_unit_ / n_frames));
  }
  return smart_resized(frame, rule.bounded(bounds));
}

ImageTiles VideoProcessor::unit(std::span<const Image> frames, Extent original) const {
  CHECK(!frames.empty());
  ImageTiles out;
  out.n_frames = frames_per_unit_;
  out.original_height = original.height;
  out.original_width = original.width;
  const int64_t height = frames[0].height, width = frames[0].width, size = 3 * height * width;
  out.allocate(1, height, width);
  for (int64_t i = 0; i < frames_per_unit_; ++i) {
    const Image& frame = frames[std::min(static_cast<size_t>(i), frames.size() - 1)];
    CHECK(frame.height == height && frame.width == width);
    to_planes(frame, tables_, {out.tensor().as<float>() + i * size, static_cast<size_t>(size)});
  }
  out.shown = {{.right = static_cast<float>(original.width), .bottom = static_cast<float>(original.height)}};
  return out;
}

std::unique_ptr<const VideoProcessor> load_video_processor(const Checkpoint& checkpoint, std::string_view model_type) {
  const JsonObject config = checkpoint.video_settings();
  return std::make_unique<const VideoProcessor>(kind_of(config, model_type), config);
}

}  // namespace vlcache
