#include "model/processors/standard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "model/processors/registry.h"

namespace vlcache {
namespace {

// Zeros to the right and below, after normalising. `in` has one tile.
ImageTiles pad_pixels(const ImageTiles& in, Extent to) {
  if (to.height < in.height || to.width < in.width) {
    throw Error(ErrorCode::kShape, "image processor: pad_size " + std::to_string(to.height) + " x " +
                                       std::to_string(to.width) + " is smaller than the processed image, " +
                                       std::to_string(in.height) + " x " + std::to_string(in.width));
  }
  ImageTiles out;
  out.original_height = in.original_height;
  out.original_width = in.original_width;
  out.allocate(1, to.height, to.width);
  const PixelRect padded = {.right = static_cast<float>(to.width), .bottom = static_cast<float>(to.height)};
  out.shown = {part_of(in.shown[0], static_cast<float>(in.width), static_cast<float>(in.height), padded)};
  const float* from = in.tensor().as<float>();
  float* into = out.tensor().as<float>();
  for (int64_t row = 0; row < 3 * in.height; ++row) {
    const int64_t plane = row / in.height, y = row % in.height;
    std::memcpy(into + (plane * to.height + y) * to.width, from + row * in.width,
                static_cast<size_t>(in.width) * sizeof(float));
  }
  return out;
}

}  // namespace

StandardImageProcessor::StandardImageProcessor(std::string type, const ProcessorSettings& settings)
    : type_(std::move(type)), settings_(settings), tables_(value_tables(settings)) {
  const SizeSpec& size = settings.size;
  if (settings.do_resize && size.height == 0 && size.shortest_edge == 0 && size.max_height == 0) {
    throw Error(ErrorCode::kInput,
                settings.where +
                    ": size: expected height and width, shortest_edge, or max_height and max_width; found " +
                    size_key(size));
  }
  if (settings.do_center_crop && settings.crop_size.height == 0) {
    throw Error(ErrorCode::kInput,
                settings.where + ": crop_size: expected height and width, found " + size_key(settings.crop_size));
  }
  if (settings.do_pad && settings.pad_size != SizeSpec{} && settings.pad_size.height == 0) {
    throw Error(ErrorCode::kInput,
                settings.where + ": pad_size: expected height and width, found " + size_key(settings.pad_size));
  }
}

int64_t StandardImageProcessor::longer_side(double width, double height) const {
  if (!settings_.do_resize) return ImageProcessor::longer_side(width, height);
  const auto pixels = [](double points) { return std::max<int64_t>(1, std::llround(std::min(points, 1e6))); };
  const Extent resized = resized_extent({pixels(height), pixels(width)}, settings_.size);
  return std::max(resized.height, resized.width);
}

ImageTiles StandardImageProcessor::make_tiles(const Image& image, PixelAllowance& allowance) const {
  return process_placed(image, whole_of(image), image, allowance);
}

ImageTiles StandardImageProcessor::process_placed(const Image& image, const PixelRect& shown, const Image& original,
                                                  PixelAllowance& allowance) const {
  ImageTiles out = begin_tiles(original, 1);
  append_tile(resize_and_crop(image, shown, settings_, allowance), tables_, &out);
  if (!settings_.do_pad || settings_.pad_size.height == 0) return out;
  return pad_pixels(out, {settings_.pad_size.height, settings_.pad_size.width});
}

ProcessorSettings clip_settings() {
  ProcessorSettings settings{.do_center_crop = true,
                             .size = {.shortest_edge = 224},
                             .crop_size = {.height = 224, .width = 224},
                             .default_to_square = false,
                             .resample = Resample::kBicubic};
  settings.use_clip_statistics();
  return settings;
}

std::unique_ptr<ImageProcessor> make_clip_processor(const JsonObject& config) {
  ProcessorSettings settings = clip_settings();
  settings.read(config);
  // Kosmos-2's spelling of a square size; it overrides `size`.
  if (config.boolean("use_square_size", false)) settings.size = {.height = 224, .width = 224};
  return std::make_unique<StandardImageProcessor>("CLIP", settings);
}

std::unique_ptr<ImageProcessor> make_siglip_processor(const JsonObject& config) {
  ProcessorSettings settings{
      .size = {.height = 224, .width = 224}, .default_to_square = false, .resample = Resample::kBicubic};
  settings.read(config);
  return std::make_unique<StandardImageProcessor>("SigLIP", settings);
}

std::unique_ptr<ImageProcessor> make_vit_processor(const JsonObject& config) {
  ProcessorSettings settings{.size = {.height = 224, .width = 224}};
  settings.read(config);
  return std::make_unique<StandardImageProcessor>("ViT", settings);
}

}  // namespace vlcache
