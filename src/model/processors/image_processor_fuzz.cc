// Fuzzes preprocessor_config.json and video_preprocessor_config.json: settings that a processor accepts must use a
// small image without more than an Error. A small allowance of pixels keeps every input quick: inputs within the usual
// allowance take minutes in a sanitized build.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "model/processors/registry.h"
#include "model/processors/video_processor.h"

namespace {

using namespace vlcache;

constexpr auto kMakers = {make_clip_processor,     make_siglip_processor,       make_vit_processor,
                          make_llava_processor,    make_llava_next_processor,   make_idefics3_processor,
                          make_qwen2_vl_processor, make_paddleocr_vl_processor, make_glm46v_processor,
                          make_nanovlm_processor};

constexpr int64_t kPixels = int64_t{1} << 22;  // every class's default sizes

Image small_image() {
  Image image(5, 3);
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(i * 5);
  return image;
}

// The frames of a video that a processor chooses are frames of it, and the result of one has its size.
void show_video(const JsonObject& config, VideoProcessor::Kind kind) {
  const VideoProcessor processor(kind, config);
  const std::vector<int64_t> indices = processor.sample({.n_frames = 37, .fps = 11}, {});
  if (indices.empty() || indices.front() < 0 || indices.back() >= 37) std::abort();
  const ShownFrames shown =
      processor.choose({.n_frames = 4, .fps = 0.4, .times = {0, 0.1, 0.1, 7}, .end = 10}, {.max_frames = 50});
  if (shown.indices.empty() || shown.indices.back() > 3 || !std::ranges::is_sorted(shown.indices) ||
      !std::ranges::is_sorted(shown.seconds) || shown.seconds.size() != shown.indices.size()) {
    std::abort();
  }
  const Extent size = processor.extent({.height = 30, .width = 50}, std::ssize(indices), {.most = 9});
  if (size.height < 1 || size.width < 1 || size.height > kPixels / size.width) return;
  const ImageTiles unit = processor.unit({{Image(size.width, size.height)}}, {.height = 30, .width = 50});
  if (unit.n_frames != processor.frames_per_unit() || unit.pixels.bytes() != unit.tensor().bytes()) std::abort();
}

}  // namespace

FUZZ_TARGET(image_processor) {
  if (size == 0) return 0;
  static const Image image = small_image();
  try {  // the first byte chooses the class
    const Json json = parse_json({reinterpret_cast<const char*>(data) + 1, size - 1}, "fuzz");
    const size_t which = data[0] % (kMakers.size() + 2);
    if (which >= kMakers.size()) {
      const bool third = which > kMakers.size();
      show_video(JsonObject(json, "fuzz"), third ? VideoProcessor::Kind::kQwen3 : VideoProcessor::Kind::kQwen2);
      return 0;
    }
    const auto processor = kMakers.begin()[which](JsonObject(json, "fuzz"));
    if (processor->settings_key().empty()) std::abort();
    const ImageTiles out = processor->process(image, PixelAllowance(kPixels));
    if (static_cast<int64_t>(out.shown.size()) != out.n_tiles || out.pixels.bytes() != out.tensor().bytes())
      std::abort();
  } catch (const Error&) {
  }
  return 0;
}
