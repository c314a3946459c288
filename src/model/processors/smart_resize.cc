// The processors of models that read grids of any size, Qwen2VLImageProcessor (also of Qwen2.5-VL and Qwen3-VL),
// PaddleOCRVLImageProcessor and Glm46VImageProcessor: an image keeps its aspect ratio; its sides become multiples of a
// token's, its area lies between two bounds.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/processors/registry.h"
#include "model/processors/settings.h"
#include "model/processors/steps.h"

namespace vlcache {
namespace {

constexpr double kMaxAspect = 200;
constexpr int64_t kMostPixels = int64_t{1} << 40;  // of a bound: no product overflows

// Sides below one token's are enlarged first.
Extent enlarged(Extent from, const SmartResize& rule) {
  const auto height = static_cast<double>(from.height), width = static_cast<double>(from.width),
             cell = static_cast<double>(rule.cell);
  const auto rounded = [](double x) { return static_cast<int64_t>(std::nearbyint(x)); };
  if (rule.small == SmartResize::Small::kScaled && (height < cell || width < cell)) {
    const double scale = std::max(cell / height, cell / width);
    return {.height = static_cast<int64_t>(height * scale), .width = static_cast<int64_t>(width * scale)};
  }
  if (rule.small == SmartResize::Small::kSideBySide) {
    if (from.height < rule.cell) from = {.height = rule.cell, .width = rounded(width * cell / height)};
    if (from.width < rule.cell) {
      from = {.height = rounded(static_cast<double>(from.height) * cell / static_cast<double>(from.width)),
              .width = rule.cell};
    }
  }
  return from;
}

class SmartResizeProcessor : public ImageProcessor {
 public:
  SmartResizeProcessor(std::string name, const ProcessorSettings& settings, const SmartResize& rule)
      : name_(std::move(name)), settings_(settings), tables_(value_tables(settings)), rule_(rule) {}

  std::string settings_key() const override {
    return name_ + ": " + settings_.key() + " cell=" + std::to_string(rule_.cell) +
           " pixels=" + std::to_string(rule_.least) + "-" + std::to_string(rule_.most) + "/" +
           std::to_string(rule_.n_frames);
  }

  std::array<float, 3> value_range() const override { return range_of(tables_); }

  // Of as many pixels as an image may have.
  int64_t longer_side(double width, double height) const override {
    if (!settings_.do_resize) return ImageProcessor::longer_side(width, height);
    const double most = static_cast<double>(rule_.most) / static_cast<double>(rule_.n_frames);
    return static_cast<int64_t>(std::ceil(std::sqrt(most * std::max(width, height) / std::min(width, height))));
  }

  std::unique_ptr<ImageProcessor> bounded(const TokenBounds& bounds) const override {
    if (!settings_.do_resize) return nullptr;
    return std::make_unique<SmartResizeProcessor>(name_, settings_, rule_.bounded(bounds));
  }

 private:
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override {
    ImageTiles out = begin_tiles(image, 1);
    if (!settings_.do_resize) {
      append_tile({image, whole_of(image)}, tables_, &out);
      return out;
    }
    const Extent to = smart_resized({image.height, image.width}, rule_);
    append_tile({resize_to(image, to, settings_.resample, allowance), whole_of(image)}, tables_, &out);
    return out;
  }

  const std::string name_;
  const ProcessorSettings settings_;
  const ChannelTables tables_;
  const SmartResize rule_;
};

// A number of pixels: of `size` by its newer name, or at the root by its older one, which counts.
int64_t read_pixels(const JsonObject& config, std::string_view newer, std::string_view older, int64_t fallback) {
  const auto read = [&](const JsonObject& object, std::string_view key) {
    if (!object.has(key)) return;
    fallback = object.integer(key);
    if (fallback < 1 || fallback > kMostPixels)
      object.fail(key, "a number of pixels from 1 to " + std::to_string(kMostPixels));
  };
  if (config.find("size") != nullptr) {
    const JsonObject size = config.object("size");
    read(size, older);
    read(size, newer);
    if (size.has("shortest_edge") && size.has("longest_edge") &&
        size.integer("shortest_edge") > size.integer("longest_edge")) {  // small images would become larger than large
      size.fail("shortest_edge", "pixels of at most longest_edge (" + shown_json(*size.find("longest_edge")) + ")");
    }
  }
  read(config, older);
  return fallback;
}

std::unique_ptr<ImageProcessor> make_smart_resize(std::string name, const JsonObject& config, const SmartResize& rule) {
  SmartResizeSettings settings = {.steps = {.default_to_square = false, .resample = Resample::kBicubic}, .rule = rule};
  settings.steps.use_clip_statistics();
  settings = read_smart_resize(config, settings);
  return std::make_unique<SmartResizeProcessor>(std::move(name), settings.steps, settings.rule);
}

}  // namespace

int64_t read_side(const JsonObject& config, std::string_view key, int64_t fallback) {
  const int64_t side = config.integer(key, fallback);
  if (side < 1 || side > 1024) config.fail(key, "a number from 1 to 1024");
  return side;
}

SmartResizeSettings read_smart_resize(const JsonObject& config, SmartResizeSettings settings) {
  SmartResize& rule = settings.rule;
  Json rest = config.raw();
  rest.erase("size");  // of pixels, not of sides
  settings.steps.read(JsonObject(rest, config.where()));
  settings.steps.do_center_crop = settings.steps.do_pad = false;  // the classes have no such steps
  settings.steps.size = {};
  rule.cell = read_side(config, "patch_size", rule.cell / 2) * read_side(config, "merge_size", 2);
  if (rule.n_frames > 1) rule.n_frames = read_side(config, "temporal_patch_size", rule.n_frames);
  rule.least = read_pixels(config, "shortest_edge", "min_pixels", rule.least);
  rule.most = read_pixels(config, "longest_edge", "max_pixels", rule.most);
  return settings;
}

int64_t SmartResize::pixels(int64_t n_tokens) const {
  const int64_t per_token = cell * cell * n_frames;
  return std::min(n_tokens, kMostPixels / per_token) * per_token;
}

SmartResize SmartResize::bounded(const TokenBounds& bounds) const {
  SmartResize rule = *this;
  if (bounds.most > 0) rule.most = std::min(rule.most, pixels(bounds.most));
  rule.least = std::min(rule.least, rule.most);
  if (bounds.fewest) {
    rule.most = rule.least;
  } else if (bounds.least > 0) {
    rule.least = std::max(rule.least, pixels(bounds.least));
    rule.most = std::max(rule.most, rule.least);
  }
  return rule;
}

Extent smart_resized(Extent from, const SmartResize& rule) {
  const Extent given = from;
  from = enlarged(from, rule);
  const auto height = static_cast<double>(from.height), width = static_cast<double>(from.width),
             step = static_cast<double>(rule.cell), frames = static_cast<double>(rule.n_frames);
  if (std::max(height, width) / std::min(height, width) > kMaxAspect) {
    throw Error(ErrorCode::kInput, "an image of " + std::to_string(given.width) + " x " + std::to_string(given.height) +
                                       " pixels: one side may be at most 200 times the other for this model");
  }
  const auto cells = [&](double n) { return static_cast<int64_t>(n) * rule.cell; };
  Extent to = {.height = cells(std::nearbyint(height / step)), .width = cells(std::nearbyint(width / step))};
  const int64_t pixels = (rule.n_compared > 0 ? rule.n_compared : rule.n_frames) * to.height * to.width;
  if (pixels > rule.most) {
    const double beta = std::sqrt(frames * height * width / static_cast<double>(rule.most));
    to = {.height = std::max(rule.cell, cells(std::floor(height / beta / step))),
          .width = std::max(rule.cell, cells(std::floor(width / beta / step)))};
  } else if (pixels < rule.least) {
    const double beta = std::sqrt(static_cast<double>(rule.least) / (frames * height * width));
    to = {.height = cells(std::ceil(height * beta / step)), .width = cells(std::ceil(width * beta / step))};
  }
  return to;
}

std::unique_ptr<ImageProcessor> make_qwen2_vl_processor(const JsonObject& config) {
  return make_smart_resize("Qwen2-VL", config, {.least = 56 * 56, .most = 28 * 28 * 1280});
}

std::unique_ptr<ImageProcessor> make_paddleocr_vl_processor(const JsonObject& config) {
  return make_smart_resize("PaddleOCR-VL", config,
                           {.small = SmartResize::Small::kSideBySide, .least = 384 * 384, .most = 1536 * 1536});
}

std::unique_ptr<ImageProcessor> make_glm46v_processor(const JsonObject& config) {
  return make_smart_resize(
      "GLM-4.6V", config,
      {.small = SmartResize::Small::kScaled, .n_frames = 2, .least = 112 * 112, .most = 28 * 28 * 15000});
}

}  // namespace vlcache
