// Prompts with videos and what transformers makes of them: video-<i>.json beside a fixture model
// (tools/fixtures/models/videos.py).
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "io/image/resize.h"
#include "io/safetensors.h"

namespace vlcache {

// The frames of a strip, one below the other.
inline std::vector<Image> cut_frames(const Image& strip, int64_t height) {
  std::vector<Image> frames;
  for (int64_t y = 0; y < strip.height; y += height) {
    frames.push_back(cut_out(strip, {.x = 0, .y = y, .width = strip.width, .height = height}));
  }
  return frames;
}

// Hands out frames that are in memory. `n_read`, if any, counts them.
inline InputVideo video_of(std::vector<Image> frames, double fps, VideoSampling sampling,
                           std::shared_ptr<int64_t> n_read = nullptr) {
  InputVideo video;
  video.where = "clip";
  video.timing = {.n_frames = std::ssize(frames), .fps = fps};
  video.width = frames.empty() ? 0 : frames[0].width;
  video.height = frames.empty() ? 0 : frames[0].height;
  video.sampling = sampling;
  video.read = [frames = std::move(frames), n_read](std::span<const int64_t> indices, const InputVideo::Take& take) {
    for (const int64_t i : indices) {
      if (n_read != nullptr) ++*n_read;
      take(frames[static_cast<size_t>(i)]);
    }
  };
  return video;
}

struct VideoFixture {
  VideoFixture(const std::string& model, int number)
      : dir(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models" / model),
        json(parse_ordered_json(read_text_file(dir / (name(number) + ".json")), name(number))),
        expected(Safetensors::open(dir / (name(number) + ".safetensors"))) {}

  std::unique_ptr<Engine> load(EngineOptions options) const {
    options.kv_memory_bytes = options.cache_bytes = 64 << 20;
    return Engine::load(Checkpoint(dir), options);
  }
  InputMedia media() const {
    std::vector<Image> images;
    std::vector<InputVideo> videos;
    for (const auto& item : json["media"]) {
      if (item.contains("image")) {
        images.push_back(load_image(dir / item["image"].get<std::string>()));
      } else {
        const Image strip = load_image(dir / item["video"].get<std::string>());
        videos.push_back(video_of(cut_frames(strip, item["height"].get<int64_t>()), item["fps"].get<double>(),
                                  {.fps = item["shown_fps"].get<double>()}));
      }
    }
    return {std::move(images), std::move(videos)};
  }
  Prompt prompt(const Engine& engine) const { return engine.prepare_raw(json["prompt"].get<std::string>(), media()); }
  std::vector<int32_t> ids(const char* key) const { return json[key].get<std::vector<int32_t>>(); }

  static std::string name(int number) { return "video-" + std::to_string(number); }

  const std::filesystem::path dir;
  const nlohmann::ordered_json json;
  const Safetensors expected;
};

}  // namespace vlcache
