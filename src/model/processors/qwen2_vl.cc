// Qwen2VLImageProcessor, also of Qwen2.5-VL and Qwen3-VL: an image keeps its aspect ratio; its sides become multiples
// of a token's, its area lies between two bounds.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/processors/registry.h"
#include "model/processors/steps.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxAspect = 200;

// Numbers of pixels that an image is resized to.
struct PixelBounds {
  int64_t least = 0, most = 0;
};

// transformers' smart_resize: sides rounded to the nearest multiples of `cell` (halves to even), or the area scaled to
// a bound and sides rounded away from it.
Extent resized_within(Extent from, int64_t cell, PixelBounds bounds) {
  const auto height = static_cast<double>(from.height), width = static_cast<double>(from.width),
             step = static_cast<double>(cell);
  if (std::max(height, width) / std::min(height, width) > static_cast<double>(kMaxAspect)) {
    throw Error(ErrorCode::kInput, "an image of " + std::to_string(from.width) + " x " + std::to_string(from.height) +
                                       " pixels: one side may be at most " + std::to_string(kMaxAspect) +
                                       " times the other for this model");
  }
  const auto cells = [&](double n) { return static_cast<int64_t>(n) * cell; };
  Extent to = {.height = cells(std::nearbyint(height / step)), .width = cells(std::nearbyint(width / step))};
  if (to.height * to.width > bounds.most) {
    const double beta = std::sqrt(height * width / static_cast<double>(bounds.most));
    to = {.height = std::max(cell, cells(std::floor(height / beta / step))),
          .width = std::max(cell, cells(std::floor(width / beta / step)))};
  } else if (to.height * to.width < bounds.least) {
    const double beta = std::sqrt(static_cast<double>(bounds.least) / (height * width));
    to = {.height = cells(std::ceil(height * beta / step)), .width = cells(std::ceil(width * beta / step))};
  }
  return to;
}

class Qwen2VlImageProcessor : public ImageProcessor {
 public:
  Qwen2VlImageProcessor(const ProcessorSettings& settings, int64_t cell, PixelBounds bounds)
      : settings_(settings), tables_(value_tables(settings)), cell_(cell), bounds_(bounds) {}

  std::string settings_key() const override {
    return "Qwen2-VL: " + settings_.key() + " cell=" + std::to_string(cell_) +
           " pixels=" + std::to_string(bounds_.least) + "-" + std::to_string(bounds_.most);
  }

 private:
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override {
    ImageTiles out = begin_tiles(image, 1);
    if (!settings_.do_resize) {
      append_tile({image, whole_of(image)}, tables_, &out);
      return out;
    }
    const Extent to = resized_within({image.height, image.width}, cell_, bounds_);
    append_tile({resize_to(image, to, settings_.resample, allowance), whole_of(image)}, tables_, &out);
    return out;
  }

  const ProcessorSettings settings_;
  const ChannelTables tables_;
  const int64_t cell_;
  const PixelBounds bounds_;
};

// A number of pixels: of `size` by its newer name, or at the root by its older one, which counts.
int64_t read_pixels(const JsonObject& config, std::string_view newer, std::string_view older, int64_t fallback) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const auto read = [&](const JsonObject& object, std::string_view key) {
    if (!object.has(key)) return;
    fallback = object.integer(key);
    if (fallback < 1 || fallback > kMost) object.fail(key, "a number of pixels from 1 to " + std::to_string(kMost));
  };
  if (config.find("size") != nullptr) {
    const JsonObject size = config.object("size");
    read(size, older);
    read(size, newer);
  }
  read(config, older);
  return fallback;
}

int64_t read_side(const JsonObject& config, std::string_view key, int64_t fallback) {
  const int64_t side = config.integer(key, fallback);
  if (side < 1 || side > 1024) config.fail(key, "a number from 1 to 1024");
  return side;
}

}  // namespace

std::unique_ptr<ImageProcessor> make_qwen2_vl_processor(const JsonObject& config) {
  ProcessorSettings settings{.default_to_square = false, .resample = Resample::kBicubic};
  settings.use_clip_statistics();
  Json rest = config.raw();
  rest.erase("size");  // of pixels, not of sides
  settings.read(JsonObject(rest, config.where()));
  settings.do_center_crop = settings.do_pad = false;  // the class has no such steps
  settings.size = {};
  const PixelBounds bounds = {.least = read_pixels(config, "shortest_edge", "min_pixels", 56 * 56),
                              .most = read_pixels(config, "longest_edge", "max_pixels", 28 * 28 * 1280)};
  return std::make_unique<Qwen2VlImageProcessor>(
      settings, read_side(config, "patch_size", 14) * read_side(config, "merge_size", 2), bounds);
}

}  // namespace vlcache
