// nanoVLM's image processing: one square tile; or, in its last generation, the image enlarged to a grid of square
// tiles, with the whole image as first tile. Values are levels / 255. (data/processors.py, data/custom_transforms.py)
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/processors/registry.h"
#include "model/processors/steps.h"

namespace vlcache {
namespace {

// Which inputs an output of a resized line is a mean of.
struct Taps {
  int64_t begin = 0;
  std::vector<float> weights;
};

// torch's interpolate(mode="bilinear", antialias=True): a triangle as wide as two inputs, or two outputs.
std::vector<Taps> triangle_taps(int64_t from, int64_t to) {
  const float scale = static_cast<float>(from) / static_cast<float>(to), width = std::max(scale, 1.0f);
  std::vector<Taps> all(static_cast<size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    Taps& taps = all[static_cast<size_t>(i)];
    const float centre = scale * (static_cast<float>(i) + 0.5f);
    taps.begin = std::max<int64_t>(static_cast<int64_t>(centre - width + 0.5f), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(centre + width + 0.5f), from);
    float sum = 0;
    for (int64_t j = taps.begin; j < end; ++j) {
      const float x = std::abs((static_cast<float>(j) - centre + 0.5f) / width);
      taps.weights.push_back(std::max(1.0f - x, 0.0f));
      sum += taps.weights.back();
    }
    for (float& weight : taps.weights) weight /= sum;
  }
  return all;
}

// One plane of pixels, first along the rows.
void resize_plane(std::span<const float> plane, int64_t width, const std::vector<Taps>& across,
                  const std::vector<Taps>& down, float* out) {
  const auto height = std::ssize(plane) / width, n = std::ssize(across);
  std::vector<float> narrow(static_cast<size_t>(height * n));
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < n; ++x) {
      const Taps& taps = across[static_cast<size_t>(x)];
      const float* in = plane.data() + y * width + taps.begin;
      float sum = 0;
      for (const float weight : taps.weights) sum += weight * *in++;
      narrow[static_cast<size_t>(y * n + x)] = sum;
    }
  }
  for (const Taps& taps : down) {
    for (int64_t x = 0; x < n; ++x) {
      const float* in = narrow.data() + taps.begin * n + x;
      float sum = 0;
      for (const float weight : taps.weights) {
        sum += weight * *in;
        in += n;
      }
      *out++ = sum;
    }
  }
}

struct NanoVlmSettings {
  int64_t tile = 0;
  int64_t longest = 0;  // of the grid of tiles; 0: one tile
  bool to_longest = false;
  bool global_tile = false;
};

class NanoVlmImageProcessor : public ImageProcessor {
 public:
  explicit NanoVlmImageProcessor(const NanoVlmSettings& settings)
      : settings_(settings), tables_(value_tables({.do_normalize = false})) {}

  // One column (or row) of tiles less, in the end one tile.
  std::unique_ptr<ImageProcessor> coarser() const override {
    if (settings_.longest <= settings_.tile) return nullptr;
    NanoVlmSettings settings = settings_;
    settings.longest -= settings.tile;
    return std::make_unique<NanoVlmImageProcessor>(settings);
  }
  int64_t longer_side(double /*width*/, double /*height*/) const override {
    return settings_.longest > 0 ? settings_.longest : settings_.tile;
  }
  std::array<float, 3> value_range() const override { return range_of(tables_); }
  std::string settings_key() const override {
    return "nanoVLM: tile=" + std::to_string(settings_.tile) + " longest=" + std::to_string(settings_.longest) +
           (settings_.to_longest ? " always" : "") + (settings_.global_tile ? " global" : "");
  }

 private:
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override {
    const int64_t tile = settings_.tile;
    if (settings_.longest == 0) {
      ImageTiles out = begin_tiles(image, 1);
      append_tile({resize_to(image, {tile, tile}, Resample::kBilinear, allowance), whole_of(image)}, tables_, &out);
      return out;
    }
    const Image whole = resize_to(image, grid_of({image.height, image.width}), Resample::kBicubic, allowance);
    const int64_t rows = whole.height / tile, cols = whole.width / tile;
    const bool global = settings_.global_tile && rows * cols > 1;
    ImageTiles out = begin_tiles(image, rows * cols + global);
    out.tile_rows = rows;
    out.tile_cols = cols;
    if (global) {
      out.overview = 0;
      append_global(whole, image, allowance, &out);
    }
    for (int64_t i = 0; i < rows * cols; ++i) {
      const CutOut part = {i % cols * tile, i / cols * tile, tile, tile};
      append_tile(cut_placed(whole, whole_of(image), part, allowance), tables_, &out);
    }
    return out;
  }

  // Multiples of a tile: the longer side up to a limit, the shorter one in proportion, both rounded up.
  Extent grid_of(Extent from) const {
    const auto tile = static_cast<double>(settings_.tile);
    const auto up = [&](double side) { return static_cast<int64_t>(std::ceil(side / tile)) * settings_.tile; };
    const int64_t longer = std::max(from.height, from.width), shorter = std::min(from.height, from.width);
    const int64_t to =
        settings_.to_longest ? settings_.longest : std::min(settings_.longest, up(static_cast<double>(longer)));
    const double scale = static_cast<double>(to) / static_cast<double>(longer);
    const int64_t other = std::max(up(static_cast<double>(shorter) * scale), settings_.tile);
    return from.width >= from.height ? Extent{other, to} : Extent{to, other};
  }

  void append_global(const Image& whole, const Image& image, PixelAllowance& allowance, ImageTiles* out) const {
    const int64_t tile = settings_.tile, area = whole.width * whole.height;
    allowance.take(whole.width, whole.height);  // as floats
    std::vector<float> planes(static_cast<size_t>(3 * area));
    to_planes(whole, tables_, planes);
    out->allocate(out->n_tiles, tile, tile);
    const std::vector<Taps> across = triangle_taps(whole.width, tile), down = triangle_taps(whole.height, tile);
    for (int64_t c = 0; c < 3; ++c) {
      resize_plane(std::span(planes).subspan(static_cast<size_t>(c * area), static_cast<size_t>(area)), whole.width,
                   across, down, out->tensor().as<float>() + c * tile * tile);
    }
    out->shown.push_back(whole_of(image));
  }

  NanoVlmSettings settings_;
  ChannelTables tables_;
};

}  // namespace

std::unique_ptr<ImageProcessor> make_nanovlm_processor(const JsonObject& config) {
  const auto edge = [&](std::string_view key) { return read_size(config, key, true, {}).longest_edge; };
  NanoVlmSettings settings = {.tile = edge("max_image_size"),
                              .to_longest = read_flag(config, "resize_to_max_side_len", false),
                              .global_tile = read_flag(config, "global_tile", false)};
  if (settings.tile == 0) config.fail("max_image_size", "an object with longest_edge");
  if (read_flag(config, "do_image_splitting", true)) {
    settings.longest = edge("size");
    if (settings.longest == 0 || settings.longest % settings.tile != 0) {
      config.fail("size", "a longest_edge that is a multiple of a tile (" + std::to_string(settings.tile) + ")");
    }
  }
  return std::make_unique<NanoVlmImageProcessor>(settings);
}

}  // namespace vlcache
