// resize, centre crop, rescale, normalise, pad.
#include "model/processors/standard.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace vlcache {
namespace {

// Zeros to the right and below, after normalising.
void pad_pixels(Extent to, ProcessedImage* out) {
  if (to.height < out->height || to.width < out->width) {
    throw Error(ErrorCode::kShape, "image processor: pad_size " + std::to_string(to.height) + " x " +
                                       std::to_string(to.width) + " is smaller than the processed picture, " +
                                       std::to_string(out->height) + " x " + std::to_string(out->width));
  }
  std::vector<float> padded(static_cast<size_t>(3 * to.height * to.width), 0.0f);
  for (int64_t row = 0; row < 3 * out->height; ++row) {
    const int64_t plane = row / out->height, y = row % out->height;
    std::copy_n(out->pixels.begin() + row * out->width, out->width,
                padded.begin() + (plane * to.height + y) * to.width);
  }
  out->pixels = std::move(padded);
  out->height = to.height;
  out->width = to.width;
}

}  // namespace

StandardImageProcessor::StandardImageProcessor(std::string type, const ProcessorSettings& settings)
    : type_(std::move(type)), settings_(settings), tables_(value_tables(settings)) {
  if (settings.do_center_crop && settings.crop_size.height == 0) {
    throw Error(ErrorCode::kInput,
                "image processor: crop_size: expected height and width, found " + size_key(settings.crop_size));
  }
  if (settings.do_pad && settings.pad_size != SizeSpec{} && settings.pad_size.height == 0) {
    throw Error(ErrorCode::kInput,
                "image processor: pad_size: expected height and width, found " + size_key(settings.pad_size));
  }
}

ProcessedImage StandardImageProcessor::process(const Image& image) const {
  ProcessedImage out;
  out.original_height = image.height;
  out.original_width = image.width;
  append_tile(resize_and_crop(image, settings_), tables_, &out);
  if (settings_.do_pad && settings_.pad_size.height != 0)
    pad_pixels({settings_.pad_size.height, settings_.pad_size.width}, &out);
  return out;
}

Image resize_and_crop(const Image& image, const ProcessorSettings& settings) {
  Image out = image;
  if (settings.do_resize) {
    out = resize_to(image, resized_extent({image.height, image.width}, settings.size), settings.resample);
  }
  if (settings.do_center_crop) out = center_crop(out, {settings.crop_size.height, settings.crop_size.width});
  return out;
}

void append_tile(const Image& tile, const ChannelTables& tables, ProcessedImage* out) {
  if (out->n_tiles == 0) {
    out->height = tile.height;
    out->width = tile.width;
  } else if (tile.height != out->height || tile.width != out->width) {
    throw Error(ErrorCode::kShape, "image processor: tile " + std::to_string(out->n_tiles) + " is " +
                                       std::to_string(tile.height) + " x " + std::to_string(tile.width) +
                                       ", the first one " + std::to_string(out->height) + " x " +
                                       std::to_string(out->width) + "; resizing or cropping must make them equal");
  }
  const size_t n = static_cast<size_t>(3 * tile.height * tile.width), at = out->pixels.size();
  out->pixels.resize(at + n);
  to_planes(tile, tables, std::span(out->pixels).subspan(at, n));
  ++out->n_tiles;
}

}  // namespace vlcache
