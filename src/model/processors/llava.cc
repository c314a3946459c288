// LlavaImageProcessor: CLIP's steps; with do_pad, the image is first made square with bars of the mean colour.
#include <algorithm>

#include "model/processors/registry.h"
#include "model/processors/standard.h"

namespace vlcache {
namespace {

class LlavaImageProcessor : public StandardImageProcessor {
 public:
  // In this class do_pad means the bars, so the base is told not to pad.
  LlavaImageProcessor(const ProcessorSettings& settings, bool make_square)
      : StandardImageProcessor("LLaVA", settings), make_square_(make_square) {
    for (size_t c = 0; c < 3; ++c) {
      const double level = std::clamp(settings.image_mean[c] * 255, 0.0, 255.0);
      background_[c] = static_cast<uint8_t>(level);
    }
  }

  int64_t longer_side(double width, double height) const override {
    const double side = std::max(width, height);
    return make_square_ ? StandardImageProcessor::longer_side(side, side)
                        : StandardImageProcessor::longer_side(width, height);
  }

  std::string settings_key() const override {
    if (!make_square_) return StandardImageProcessor::settings_key();
    std::string key = StandardImageProcessor::settings_key() + " square=";
    for (const uint8_t level : background_) key += std::to_string(level) + ",";
    return key;
  }

 private:
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override {
    if (!make_square_ || image.width == image.height) return StandardImageProcessor::make_tiles(image, allowance);
    const int64_t side = std::max(image.width, image.height);
    const CutOut bars = {-((side - image.width) / 2), -((side - image.height) / 2), side, side};
    const Placed square = cut_placed(image, whole_of(image), bars, allowance, background_);
    return process_placed(square.image, square.shown, image, allowance);
  }

  bool make_square_;
  Rgb background_{};
};

}  // namespace

std::unique_ptr<ImageProcessor> make_llava_processor(const JsonObject& config) {
  ProcessorSettings settings = clip_settings();
  settings.read(config);
  const bool make_square = settings.do_pad;
  settings.do_pad = false;
  return std::make_unique<LlavaImageProcessor>(settings, make_square);
}

}  // namespace vlcache
