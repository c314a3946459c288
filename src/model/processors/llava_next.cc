// LlavaNextImageProcessor ("anyres"): the whole image, then the tiles of the grid that suits its shape best.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "model/processors/registry.h"
#include "model/processors/standard.h"

namespace vlcache {
namespace {

using Pinpoints = std::vector<std::pair<int64_t, int64_t>>;  // (height, width)

constexpr int64_t kMaxPinpoint = 8192;  // far beyond any encoder, and an image of that size still fits in memory
constexpr size_t kMaxPinpoints = 1024;
constexpr int64_t kMaxTiles = 4096;

// Size of an image scaled to just fit `target`.
Extent fitted_extent(Extent from, Extent target) {
  const double scale_w = static_cast<double>(target.width) / static_cast<double>(from.width);
  const double scale_h = static_cast<double>(target.height) / static_cast<double>(from.height);
  if (scale_w < scale_h) {
    const auto height = static_cast<int64_t>(std::ceil(static_cast<double>(from.height) * scale_w));
    return {std::min(height, target.height), target.width};
  }
  const auto width = static_cast<int64_t>(std::ceil(static_cast<double>(from.width) * scale_h));
  return {target.height, std::min(width, target.width)};
}

class LlavaNextImageProcessor : public ImageProcessor {
 public:
  LlavaNextImageProcessor(const ProcessorSettings& settings, Pinpoints pinpoints)
      : settings_(settings), pinpoints_(std::move(pinpoints)), tables_(value_tables(settings)) {
    const SizeSpec &size = settings.size, &crop = settings.crop_size;
    base_ = size.height != 0 ? Extent{size.height, size.width} : Extent{size.shortest_edge, size.shortest_edge};
    tile_ = crop.height != 0 ? crop.height : base_.height;
    if (base_.height == 0 || tile_ == 0 || (settings.do_center_crop && crop.height == 0)) {
      throw Error(ErrorCode::kInput, settings.where +
                                         ": LLaVA-NeXT: expected size with shortest_edge or height and width, found " +
                                         size_key(size) + ", and crop_size " + size_key(crop));
    }
  }

  // Without its largest grids.
  std::unique_ptr<ImageProcessor> coarser() const override {
    const auto area = [](const auto& grid) { return grid.first * grid.second; };
    const int64_t largest = area(*std::ranges::max_element(pinpoints_, {}, area));
    Pinpoints smaller = pinpoints_;
    std::erase_if(smaller, [&](const auto& grid) { return area(grid) == largest; });
    if (smaller.empty()) return nullptr;
    return std::make_unique<LlavaNextImageProcessor>(settings_, std::move(smaller));
  }

  std::array<float, 3> value_range() const override { return range_of(tables_); }

  // Of the largest grid, whichever it is that suits the shape.
  int64_t longer_side(double, double) const override {
    int64_t longest = 0;
    for (const auto& [height, width] : pinpoints_) longest = std::max({longest, height, width});
    return longest;
  }

  std::string settings_key() const override {
    std::string key = "LLaVA-NeXT: " + settings_.key() + " base=" + std::to_string(base_.height) + "x" +
                      std::to_string(base_.width) + " tile=" + std::to_string(tile_) + " grids=";
    for (const auto& [height, width] : pinpoints_) key += std::to_string(height) + "x" + std::to_string(width) + ",";
    return key;
  }

 private:
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override {
    const auto [best_height, best_width] = select_best_resolution(image.height, image.width, pinpoints_);
    const auto [grid, shown] = fit(image, {best_height, best_width}, allowance);
    const int64_t rows = (grid.height + tile_ - 1) / tile_, cols = (grid.width + tile_ - 1) / tile_;
    if (rows * cols > kMaxTiles) {
      throw Error(ErrorCode::kInput, "image processor: LLaVA-NeXT: " + std::to_string(rows * cols) +
                                         " tiles; crop_size " + std::to_string(tile_) + " is too small for the grid");
    }
    ImageTiles out = begin_tiles(image, 1 + rows * cols);
    out.tile_rows = rows;
    out.tile_cols = cols;
    out.overview = 0;
    append(resize_to(image, base_, settings_.resample, allowance), whole_of(image), allowance, &out);
    for (int64_t y = 0; y < grid.height; y += tile_) {
      for (int64_t x = 0; x < grid.width; x += tile_) {
        const CutOut part = {x, y, std::min(tile_, grid.width - x), std::min(tile_, grid.height - y)};
        const Placed tile = cut_placed(grid, shown, part, allowance);
        append(tile.image, tile.shown, allowance, &out);
      }
    }
    return out;
  }

  void append(const Image& tile, const PixelRect& shown, PixelAllowance& allowance, ImageTiles* out) const {
    append_tile(resize_and_crop(tile, shown, settings_, allowance), tables_, out);
  }

  // The image scaled into the middle of `target`. The bars are computed from the scaled image scaled once more, as in
  // transformers: rounding up twice can leave the result one pixel away from `target`.
  Placed fit(const Image& image, Extent target, PixelAllowance& allowance) const {
    const Image scaled =
        resize_to(image, fitted_extent({image.height, image.width}, target), settings_.resample, allowance);
    const Extent fitted = fitted_extent({scaled.height, scaled.width}, target);
    const int64_t bars_x = target.width - fitted.width, bars_y = target.height - fitted.height;
    return cut_placed(scaled, whole_of(image),
                      {-(bars_x / 2), -(bars_y / 2), scaled.width + bars_x, scaled.height + bars_y}, allowance);
  }

  ProcessorSettings settings_;
  Pinpoints pinpoints_;
  ChannelTables tables_;
  Extent base_;
  int64_t tile_ = 0;
};

Pinpoints read_pinpoints(const JsonObject& config) {
  const Json* json = config.find("image_grid_pinpoints");
  if (is_null(config, "image_grid_pinpoints")) config.fail("image_grid_pinpoints", "a list of [height, width]");
  if (json == nullptr) return {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
  const auto usable = [](const Json& value) {
    return value.is_number_integer() && value.get<double>() >= 1 && value.get<double>() <= kMaxPinpoint;
  };
  Pinpoints pinpoints;
  bool valid = json->is_array() && !json->empty() && json->size() <= kMaxPinpoints;
  for (size_t i = 0; valid && i < json->size(); ++i) {
    const Json& pair = (*json)[i];
    valid = pair.is_array() && pair.size() == 2 && usable(pair[0]) && usable(pair[1]);
    if (valid) pinpoints.emplace_back(pair[0].get<int64_t>(), pair[1].get<int64_t>());
  }
  if (!valid) config.fail("image_grid_pinpoints", "a list of 1 to 1024 [height, width], each from 1 to 8192");
  return pinpoints;
}

}  // namespace

std::pair<int64_t, int64_t> select_best_resolution(int64_t height, int64_t width,
                                                   const std::vector<std::pair<int64_t, int64_t>>& pinpoints) {
  std::pair<int64_t, int64_t> best{0, 0};
  int64_t most_used = 0, least_wasted = std::numeric_limits<int64_t>::max();
  for (const auto& [grid_height, grid_width] : pinpoints) {
    const double scale = std::min(static_cast<double>(grid_width) / static_cast<double>(width),
                                  static_cast<double>(grid_height) / static_cast<double>(height));
    const auto scaled_width = static_cast<int64_t>(static_cast<double>(width) * scale);
    const auto scaled_height = static_cast<int64_t>(static_cast<double>(height) * scale);
    const int64_t used = std::min(scaled_width * scaled_height, width * height);
    const int64_t wasted = grid_width * grid_height - used;
    if (used > most_used || (used == most_used && wasted < least_wasted)) {
      most_used = used;
      least_wasted = wasted;
      best = {grid_height, grid_width};
    }
  }
  if (best.first == 0) {
    throw Error(ErrorCode::kInput, "image processor: none of the " + std::to_string(pinpoints.size()) +
                                       " grids suits an image of " + std::to_string(width) + " x " +
                                       std::to_string(height));
  }
  return best;
}

std::unique_ptr<ImageProcessor> make_llava_next_processor(const JsonObject& config) {
  ProcessorSettings settings = clip_settings();
  settings.read(config);
  settings.do_pad = false;  // pads batches of images to the same number of tiles: not ours to do
  return std::make_unique<LlavaNextImageProcessor>(settings, read_pinpoints(config));
}

}  // namespace vlcache
