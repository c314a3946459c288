// PNGs whose samples are not 8 bits against the same images in samples of 8 bits, which the tests make.
#include <gtest/gtest.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "io/image/image.h"

namespace vlcache {
namespace {

using Samples = std::vector<uint16_t>;  // [height, width, channels]

constexpr int kPngWidth = 19, kPngHeight = 11;

struct PngForm {
  int depth = 8, colour = PNG_COLOR_TYPE_GRAY;
  bool interlaced = false;
  Samples key = {};                         // the transparent colour; empty: none
  std::vector<uint8_t> palette_alpha = {};  // likewise, of the palette's entries

  size_t channels() const {
    return colour == PNG_COLOR_TYPE_RGB          ? 3
           : colour == PNG_COLOR_TYPE_RGB_ALPHA  ? 4
           : colour == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
                                                 : 1;
  }
};

std::vector<png_color> test_palette(int depth) {
  std::vector<png_color> colours(size_t{1} << std::min(depth, 8));
  for (size_t i = 0; i < colours.size(); ++i) {
    colours[i] = {static_cast<png_byte>(i * 53 + 7), static_cast<png_byte>(i * 29 + 90),
                  static_cast<png_byte>(255 - i)};
  }
  return colours;
}

std::vector<std::byte> write_png(const PngForm& form, const Samples& samples) {
  std::vector<std::byte> bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  const auto on_bytes = [](png_structp to, png_bytep data, size_t n) {
    auto* out = static_cast<std::vector<std::byte>*>(png_get_io_ptr(to));
    const auto* from = reinterpret_cast<const std::byte*>(data);
    out->insert(out->end(), from, from + n);
  };
  png_set_write_fn(png, &bytes, on_bytes, [](png_structp) {});
  png_set_IHDR(png, info, kPngWidth, kPngHeight, form.depth, form.colour,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  const std::vector<png_color> colours = test_palette(form.depth);
  if (form.colour == PNG_COLOR_TYPE_PALETTE) {
    png_set_PLTE(png, info, colours.data(), static_cast<int>(colours.size()));
    if (!form.palette_alpha.empty()) {
      png_set_tRNS(png, info, form.palette_alpha.data(), static_cast<int>(form.palette_alpha.size()), nullptr);
    }
  } else if (!form.key.empty()) {
    png_color_16 key{};
    key.gray = key.red = form.key[0];
    key.green = form.key[form.key.size() / 2];
    key.blue = form.key.back();
    png_set_tRNS(png, info, nullptr, 0, &key);
  }
  png_write_info(png, info);
  png_set_packing(png);
  const size_t row_samples = kPngWidth * form.channels(), sample_bytes = form.depth == 16 ? 2 : 1;
  std::vector<png_byte> packed(samples.size() * sample_bytes);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (form.depth == 16) packed[2 * i] = static_cast<png_byte>(samples[i] >> 8);
    packed[sample_bytes * (i + 1) - 1] = static_cast<png_byte>(samples[i]);
  }
  std::vector<png_bytep> rows;
  for (size_t y = 0; y < kPngHeight; ++y) rows.push_back(packed.data() + y * row_samples * sample_bytes);
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

Samples test_samples(const PngForm& form) {
  Samples samples(kPngWidth * kPngHeight * form.channels());
  uint32_t random = 17;
  for (uint16_t& sample : samples) {
    random = random * 1664525 + 1013904223;
    sample = static_cast<uint16_t>((random >> 12) & ((1U << form.depth) - 1));
  }
  // Neighbours that differ in the low byte alone, the first of which may be transparent; and levels around 256.
  for (size_t i = 0; i < form.channels() && form.depth == 16; ++i) {
    samples[form.channels() + i] = samples[i] ^ 1;
    samples[2 * form.channels() + i] = 255;
    samples[3 * form.channels() + i] = 256;
  }
  return samples;
}

// The same image in samples of 8 bits, with alpha for a transparent colour.
std::vector<std::byte> write_twin(const PngForm& form, const Samples& samples) {
  const size_t channels = form.channels(), n_alpha = form.key.empty() && form.palette_alpha.empty() ? 0 : 1;
  const bool has_palette = form.colour == PNG_COLOR_TYPE_PALETTE;
  const std::vector<png_color> colours = test_palette(form.depth);
  Samples eight;
  for (size_t i = 0; i < samples.size(); i += channels) {
    for (size_t c = 0; c < channels && !has_palette; ++c) {
      eight.push_back(form.depth == 16 ? samples[i + c] >> 8
                                       : static_cast<uint16_t>(samples[i + c] * 255 / ((1 << form.depth) - 1)));
    }
    if (has_palette) {
      const png_color& colour = colours[samples[i]];
      eight.insert(eight.end(), {colour.red, colour.green, colour.blue});
      const bool listed = samples[i] < form.palette_alpha.size();
      if (n_alpha > 0) eight.push_back(listed ? form.palette_alpha[samples[i]] : 255);
    } else if (n_alpha > 0) {
      eight.push_back(
          std::equal(form.key.begin(), form.key.end(), samples.begin() + static_cast<std::ptrdiff_t>(i)) ? 0 : 255);
    }
  }
  PngForm twin{.colour = form.colour};
  if (has_palette) twin.colour = PNG_COLOR_TYPE_RGB;
  if (n_alpha > 0) twin.colour |= PNG_COLOR_MASK_ALPHA;
  return write_png(twin, eight);
}

void expect_twin(const PngForm& form) {
  SCOPED_TRACE("colour " + std::to_string(form.colour) + ", " + std::to_string(form.depth) + " bits" +
               (form.interlaced ? ", interlaced" : "") + (form.key.empty() ? "" : ", with a key"));
  const Samples samples = test_samples(form);
  const Image image = decode_image(write_png(form, samples), "test"),
              twin = decode_image(write_twin(form, samples), "twin");
  ASSERT_EQ(image.width, kPngWidth);
  ASSERT_EQ(image.height, kPngHeight);
  EXPECT_EQ(image.rgb, twin.rgb);
}

TEST(Png, SamplesOfEveryDepthAreReadAsThoseOf8Bits) {
  for (const bool interlaced : {false, true}) {
    for (const int colour :
         {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB_ALPHA}) {
      expect_twin({.depth = 16, .colour = colour, .interlaced = interlaced});
    }
    for (const int depth : {1, 2, 4}) {
      expect_twin({.depth = depth, .interlaced = interlaced});
      expect_twin({.depth = depth, .colour = PNG_COLOR_TYPE_PALETTE, .interlaced = interlaced});
      expect_twin(
          {.depth = depth, .colour = PNG_COLOR_TYPE_PALETTE, .interlaced = interlaced, .palette_alpha = {0, 90}});
    }
  }
}

TEST(Png, TransparentColoursAreComparedAtTheFilesDepth) {
  for (const bool interlaced : {false, true}) {
    for (const int colour : {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_RGB}) {
      for (const int depth : {1, 2, 4, 8, 16}) {
        PngForm form{.depth = depth, .colour = colour, .interlaced = interlaced};
        if (colour == PNG_COLOR_TYPE_RGB && depth < 8) continue;
        const Samples samples = test_samples(form);
        form.key.assign(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(form.channels()));
        expect_twin(form);
      }
    }
  }
}

std::string png_chunk(const std::string& name_and_data) {
  const auto number = [](uint32_t n) {
    return std::string{static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
                       static_cast<char>(n)};
  };
  const auto* data = reinterpret_cast<const Bytef*>(name_and_data.data());
  const uLong crc = crc32(0, data, static_cast<uInt>(name_and_data.size()));
  return number(static_cast<uint32_t>(name_and_data.size() - 4)) + name_and_data + number(static_cast<uint32_t>(crc));
}

TEST(Png, TheFirstFrameOfAnAnimationOf16Bits) {
  const PngForm form{.depth = 16};
  const Samples samples = test_samples(form);
  std::vector<std::byte> bytes = write_png(form, samples);
  const std::string animation =
      png_chunk(std::string("acTL\0\0\0\2\0\0\0\0", 12)) +
      png_chunk(std::string("fcTL\0\0\0\0\0\0\0\x13\0\0\0\x0b\0\0\0\0\0\0\0\0\0\1\0\x0a\0\0", 30));
  const auto extra = std::as_bytes(std::span(animation));
  bytes.insert(bytes.begin() + 33, extra.begin(), extra.end());  // after IHDR
  EXPECT_EQ(decode_image(bytes, "test").rgb, decode_image(write_twin(form, samples), "twin").rgb);
}

}  // namespace
}  // namespace vlcache
