#include "model/processors/settings.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxEdge =
    8192;  // of a size in a file: far beyond any encoder, and an image of that size still fits in memory

int64_t edge(const JsonObject& config, std::string_view key) {
  const int64_t value = config.integer(key, 0);
  if (config.has(key) && (value < 1 || value > kMaxEdge)) config.fail(key, "a size from 1 to 8192");
  return value;
}

void read_statistics(const JsonObject& config, std::string_view key, bool needed, std::array<double, 3>* values) {
  if (is_null(config, key)) {
    if (needed) config.fail(key, "a number or three numbers");
    values->fill(0.0);
  }
  const Json* json = config.find(key);
  if (json == nullptr) return;
  if (json->is_number()) {
    values->fill(json->get<double>());
    return;
  }
  const bool three = json->is_array() && json->size() == 3 &&
                     std::all_of(json->begin(), json->end(), [](const Json& value) { return value.is_number(); });
  if (!three) config.fail(key, "a number or three numbers");
  for (size_t c = 0; c < 3; ++c) (*values)[c] = (*json)[c].get<double>();
}

// Python's round(): halves go to the even neighbour.
int64_t round_half_even(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

int64_t scaled(int64_t size, int64_t numerator, int64_t denominator) {
  return static_cast<int64_t>(static_cast<double>(size * numerator) / static_cast<double>(denominator));
}

// The shorter side becomes `shortest` unless the longer one would pass `longest`.
Extent extent_between(Extent from, int64_t shortest, int64_t longest) {
  const double least = static_cast<double>(std::min(from.height, from.width));
  const double most = static_cast<double>(std::max(from.height, from.width));
  double exact = 0.0;
  bool limited = false;
  if (most / least * static_cast<double>(shortest) > static_cast<double>(longest)) {
    exact = static_cast<double>(longest) * least / most;
    shortest = round_half_even(exact);
    limited = true;
  }
  const auto other = [&](int64_t numerator, int64_t denominator) {
    if (!limited) return scaled(shortest, numerator, denominator);
    return static_cast<int64_t>(exact * static_cast<double>(numerator) / static_cast<double>(denominator));
  };
  if ((from.height <= from.width && from.height == shortest) || (from.width <= from.height && from.width == shortest))
    return from;
  if (from.width < from.height) return {other(from.height, from.width), shortest};
  return {shortest, other(from.width, from.height)};
}

std::string number_key(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

}  // namespace

void ProcessorSettings::use_clip_statistics() {
  image_mean = {0.48145466, 0.4578275, 0.40821073};
  image_std = {0.26862954, 0.26130258, 0.27577711};
}

SizeSpec read_size(const JsonObject& config, std::string_view key, bool default_to_square, const SizeSpec& fallback) {
  if (is_null(config, key)) return {};
  const Json* json = config.find(key);
  if (json == nullptr) return fallback;
  if (json->is_number()) {
    const int64_t value = edge(config, key);
    return default_to_square ? SizeSpec{.height = value, .width = value} : SizeSpec{.shortest_edge = value};
  }
  if (json->is_array() && json->size() == 2) {
    const Json pair{{"height", (*json)[0]}, {"width", (*json)[1]}};
    const JsonObject object(pair, config.where() + ": " + std::string(key));
    return {.height = edge(object, "height"), .width = edge(object, "width")};
  }
  if (!json->is_object()) config.fail(key, "a number, [height, width] or an object");
  const JsonObject object = config.object(key);
  std::set<std::string> names;
  for (const auto& [name, value] : json->items()) {
    if (!value.is_null()) names.insert(name);
  }
  static const std::set<std::set<std::string>> kKnown = {{"height", "width"},
                                                         {"shortest_edge"},
                                                         {"shortest_edge", "longest_edge"},
                                                         {"longest_edge"},
                                                         {"max_height", "max_width"}};
  if (!kKnown.contains(names)) {
    config.fail(key, "height and width, shortest_edge and / or longest_edge, or max_height and max_width");
  }
  return {.height = edge(object, "height"),
          .width = edge(object, "width"),
          .shortest_edge = edge(object, "shortest_edge"),
          .longest_edge = edge(object, "longest_edge"),
          .max_height = edge(object, "max_height"),
          .max_width = edge(object, "max_width")};
}

bool is_null(const JsonObject& config, std::string_view key) {
  const auto at = config.raw().find(std::string(key));
  return at != config.raw().end() && at->is_null();
}

bool read_flag(const JsonObject& config, std::string_view key, bool fallback) {
  return !is_null(config, key) && config.boolean(key, fallback);
}

void ProcessorSettings::read(const JsonObject& config) {
  where = config.where();
  do_resize = read_flag(config, "do_resize", do_resize);
  do_center_crop = read_flag(config, "do_center_crop", do_center_crop);
  do_rescale = read_flag(config, "do_rescale", do_rescale);
  do_normalize = read_flag(config, "do_normalize", do_normalize);
  do_pad = read_flag(config, "do_pad", do_pad);
  default_to_square = read_flag(config, "default_to_square", default_to_square);
  size = read_size(config, "size", default_to_square, size);
  crop_size = read_size(config, "crop_size", true, crop_size);
  pad_size = read_size(config, "pad_size", true, pad_size);
  const int64_t filter = config.integer("resample", static_cast<int64_t>(resample));
  if (filter < 0 || filter > static_cast<int64_t>(Resample::kHamming) || (do_resize && is_null(config, "resample"))) {
    config.fail("resample", "0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box or 5 Hamming");
  }
  resample = static_cast<Resample>(filter);
  rescale_factor = config.number("rescale_factor", rescale_factor);
  if (do_rescale && is_null(config, "rescale_factor")) config.fail("rescale_factor", "a number");
  read_statistics(config, "image_mean", do_normalize, &image_mean);
  read_statistics(config, "image_std", do_normalize, &image_std);
  if (do_normalize && std::find(image_std.begin(), image_std.end(), 0.0) != image_std.end()) {
    config.fail("image_std", "numbers other than 0");
  }
}

std::string size_key(const SizeSpec& size) {
  std::string key("{");
  const auto add = [&key](const char* name, int64_t value) {
    if (value == 0) return;
    if (key.size() > 1) key.append(",");
    key.append(name).append("=").append(std::to_string(value));
  };
  add("h", size.height), add("w", size.width), add("shortest", size.shortest_edge), add("longest", size.longest_edge);
  add("max_h", size.max_height), add("max_w", size.max_width);
  return key.append("}");
}

std::string ProcessorSettings::key() const {
  std::string key;
  if (do_resize) key += "resize" + size_key(size);
  key += " filter=" + std::to_string(static_cast<int>(resample));
  if (do_center_crop) key += " crop" + size_key(crop_size);
  if (do_rescale) key += " rescale=" + number_key(rescale_factor);
  if (do_normalize) {
    for (size_t c = 0; c < 3; ++c)
      key += (c == 0 ? " norm=" : ",") + number_key(image_mean[c]) + "/" + number_key(image_std[c]);
  }
  if (do_pad) key += " pad" + size_key(pad_size);
  return key;
}

Extent resized_extent(Extent from, const SizeSpec& size) {
  if (size.shortest_edge != 0 && size.longest_edge != 0)
    return extent_between(from, size.shortest_edge, size.longest_edge);
  if (size.shortest_edge != 0) {
    const bool upright = from.width <= from.height;
    const int64_t shorter = upright ? from.width : from.height, longer = upright ? from.height : from.width;
    const int64_t other = scaled(size.shortest_edge, longer, shorter);
    return upright ? Extent{other, size.shortest_edge} : Extent{size.shortest_edge, other};
  }
  if (size.max_height != 0) {
    const double height = static_cast<double>(from.height), width = static_cast<double>(from.width);
    const double scale =
        std::min(static_cast<double>(size.max_height) / height, static_cast<double>(size.max_width) / width);
    return {static_cast<int64_t>(height * scale), static_cast<int64_t>(width * scale)};
  }
  CHECK(size.height != 0);
  return {size.height, size.width};
}

}  // namespace vlcache
