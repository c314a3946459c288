// ProcessorSettings: the settings that all image processors share, named as in preprocessor_config.json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "io/image/resize.h"

namespace vlcache {

// `size`, `crop_size`, `pad_size`: the keys that are set decide the meaning; 0 is "not set".
struct SizeSpec {
  int64_t height = 0, width = 0, shortest_edge = 0, longest_edge = 0, max_height = 0, max_width = 0;
  bool operator==(const SizeSpec&) const = default;
};

// Member values are the defaults that most classes have; a class changes its own before the file is read.
struct ProcessorSettings {
  std::string where = "image processor";  // in errors: where the settings were read
  bool do_resize = true, do_center_crop = false, do_rescale = true, do_normalize = true, do_pad = false;
  SizeSpec size, crop_size, pad_size;
  bool default_to_square = true;  // meaning of a plain number as `size`: both sides, or the shorter one
  Resample resample = Resample::kBilinear;
  double rescale_factor = 1.0 / 255.0;
  std::array<double, 3> image_mean{0.5, 0.5, 0.5}, image_std{0.5, 0.5, 0.5};

  void use_clip_statistics();
  // Reads the values in `config`, keeps the rest. As in transformers, null is not "absent" but "none": a step is off, a
  // size is unset.
  void read(const JsonObject& config);
  std::string key() const;
};

bool is_null(const JsonObject& config, std::string_view key);
// Null means false.
bool read_flag(const JsonObject& config, std::string_view key, bool fallback);

// A size in any of its spellings: number, [height, width], object. Throws Error(kInput) naming the key.
SizeSpec read_size(const JsonObject& config, std::string_view key, bool default_to_square, const SizeSpec& fallback);
std::string size_key(const SizeSpec& size);

struct Extent {
  int64_t height = 0, width = 0;
};

// Bounds on the tokens of an image; 0: none.
struct TokenBounds {
  int64_t least = 0, most = 0;
  bool fewest = false;  // as few as the settings allow, whatever `least` is
};

// How images become grids of any size: transformers' smart_resize, of several classes.
struct SmartResize {
  // The first step for an image with a side below `cell`: nothing, each such side is enlarged with the other in
  // proportion, or both by one factor.
  enum class Small : uint8_t { kAsIs, kSideBySide, kScaled };
  Small small = Small::kAsIs;
  int64_t cell = 28;            // pixels on a side of a token
  int64_t n_frames = 1;         // that the bounds count the pixels of
  int64_t n_compared = 0;       // the same, where it differs, when pixels are compared with the bounds
  int64_t least = 0, most = 0;  // pixels

  // A bound in tokens as one in pixels.
  int64_t pixels(int64_t n_tokens) const;
  // With bounds on the tokens of an image narrowed.
  SmartResize bounded(const TokenBounds& bounds) const;
};
struct SmartResizeSettings {
  ProcessorSettings steps;
  SmartResize rule;
};
// Settings of such a class over these defaults: `size` counts pixels, and images keep their aspect ratio.
SmartResizeSettings read_smart_resize(const JsonObject& config, SmartResizeSettings settings);
// A number from 1 to 1024.
int64_t read_side(const JsonObject& config, std::string_view key, int64_t fallback);
// Sides rounded to the nearest multiples of `cell` (halves to even), or the area scaled to a bound and sides rounded
// away from it. Throws Error(kInput) if a side is more than 200 times the other.
Extent smart_resized(Extent from, const SmartResize& rule);

// The size an image of `from` is resized to; transformers' rules, rounding included. `size` has height and width,
// shortest_edge, or max_height and max_width.
Extent resized_extent(Extent from, const SizeSpec& size);

}  // namespace vlcache
