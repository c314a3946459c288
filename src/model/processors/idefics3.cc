// Idefics3ImageProcessor and SmolVLMImageProcessor: the image enlarged to a grid of square tiles, then the whole image
// as a last tile.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/processors/registry.h"
#include "model/processors/steps.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxSide = 4096;  // no image is enlarged beyond it

int64_t times(int64_t a, double b) { return static_cast<int64_t>(static_cast<double>(a) * b); }
int64_t over(int64_t a, double b) { return static_cast<int64_t>(static_cast<double>(a) / b); }
double aspect_of(Extent e) { return static_cast<double>(e.width) / static_cast<double>(e.height); }

// The longer side becomes `longest`; the shorter one follows, rounded up to an even number.
Extent with_longest_edge(Extent from, int64_t longest) {
  const double aspect = aspect_of(from);
  Extent to =
      from.width >= from.height ? Extent{over(longest, aspect), longest} : Extent{longest, times(longest, aspect)};
  int64_t& shorter = from.width >= from.height ? to.height : to.width;
  shorter = std::max<int64_t>(1, shorter + shorter % 2);
  const double rounded = aspect_of(to);
  if (to.width >= to.height && to.width > kMaxSide) {
    to = {over(kMaxSide, rounded), kMaxSide};
  } else if (to.height > to.width && to.height > kMaxSide) {
    to = {kMaxSide, times(kMaxSide, rounded)};
  }
  return {std::max<int64_t>(1, to.height), std::max<int64_t>(1, to.width)};
}

// Both sides rounded up to multiples of `tile`, the shorter one computed from the longer.
Extent whole_tiles(Extent from, int64_t tile) {
  const double aspect = aspect_of(from);
  const auto up = [tile](int64_t side) { return (side + tile - 1) / tile * tile; };
  if (from.width >= from.height) {
    const int64_t width = up(from.width);
    return {up(over(width, aspect)), width};
  }
  const int64_t height = up(from.height);
  return {height, up(times(height, aspect))};
}

class Idefics3ImageProcessor : public ImageProcessor {
 public:
  Idefics3ImageProcessor(const ProcessorSettings& settings, int64_t tile, bool split)
      : settings_(settings), tables_(value_tables(settings)), tile_(tile), split_(split) {
    if (settings.do_resize && settings.size.longest_edge == 0 && settings.size.height == 0) {
      throw Error(ErrorCode::kInput, settings.where + ": size: expected longest_edge or height and width, found " +
                                         size_key(settings.size));
    }
  }

  // One column (or row) of tiles less, in the end the whole image alone.
  std::unique_ptr<ImageProcessor> coarser() const override {
    if (!split_) return nullptr;
    ProcessorSettings settings = settings_;
    int64_t& longest = settings.size.longest_edge;
    const bool stepwise = settings.do_resize && longest > tile_;
    if (stepwise) longest = (std::min(longest, kMaxSide) - 1) / tile_ * tile_;
    return std::make_unique<Idefics3ImageProcessor>(settings, tile_, stepwise);
  }

  std::array<float, 3> value_range() const override { return range_of(tables_); }
  int64_t longer_side(double width, double height) const override {
    const SizeSpec& size = settings_.size;
    if (!split_) return tile_;
    if (!settings_.do_resize) return ImageProcessor::longer_side(width, height);
    return std::min(kMaxSide, std::max({size.longest_edge, size.height, size.width}));
  }

  std::string settings_key() const override {
    return "Idefics3: " + settings_.key() + " tile=" + std::to_string(tile_) + (split_ ? " split" : "");
  }

 private:
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override {
    Image whole = image;
    if (settings_.do_resize)
      whole = resize_to(image, target({image.height, image.width}), settings_.resample, allowance);
    if (split_) {
      whole = resize_to(whole, whole_tiles({whole.height, whole.width}, tile_), settings_.resample, allowance);
    }
    const bool splits = split_ && (whole.height > tile_ || whole.width > tile_);
    const int64_t rows = splits ? whole.height / tile_ : 0, cols = splits ? whole.width / tile_ : 0;
    ImageTiles out = begin_tiles(image, rows * cols + 1);
    out.tile_rows = rows;
    out.tile_cols = cols;
    if (splits) out.overview = rows * cols;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const CutOut part = {i % cols * tile_, i / cols * tile_, tile_, tile_};
      append_tile(cut_placed(whole, whole_of(image), part, allowance), tables_, &out);
    }
    append_tile({resize_to(whole, {tile_, tile_}, settings_.resample, allowance), whole_of(image)}, tables_, &out);
    return out;
  }

  Extent target(Extent from) const {
    const SizeSpec& size = settings_.size;
    return size.longest_edge != 0 ? with_longest_edge(from, size.longest_edge) : Extent{size.height, size.width};
  }

  ProcessorSettings settings_;
  ChannelTables tables_;
  int64_t tile_;
  bool split_;
};

}  // namespace

std::unique_ptr<ImageProcessor> make_idefics3_processor(const JsonObject& config) {
  ProcessorSettings settings{.size = {.longest_edge = 4 * 364}, .resample = Resample::kLanczos};
  settings.read(config);
  settings.do_pad = false;          // pads batches of images to the same number of tiles: not ours to do
  settings.do_center_crop = false;  // the class has no such step
  const SizeSpec tile = read_size(config, "max_image_size", true, {.longest_edge = 364});
  if (tile.longest_edge == 0) config.fail("max_image_size", "an object with longest_edge");
  return std::make_unique<Idefics3ImageProcessor>(settings, tile.longest_edge,
                                                  read_flag(config, "do_image_splitting", true));
}

}  // namespace vlcache
