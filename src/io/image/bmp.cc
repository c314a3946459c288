// Windows bitmaps: 1, 4, 8, 16, 24 and 32 bits, RLE4 and RLE8, bit fields, both row orders. Sources: the
// BITMAPINFOHEADER documentation; where files leave something open, what Pillow does.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "io/image/alpha.h"
#include "io/image/decoders.h"

namespace vlcache {
namespace {

enum Compression : uint32_t { kRaw = 0, kRle8 = 1, kRle4 = 2, kBitFields = 3 };

constexpr size_t kFileHeader = 14;

struct BmpHeader {
  int64_t width = 0, height = 0;
  bool top_down = false;
  uint32_t bits = 0, compression = kRaw;
  std::array<uint32_t, 3> masks{};  // red, green, blue
  uint32_t alpha_mask = 0;          // none: opaque
  size_t pixels_at = 0;
  std::array<std::array<uint8_t, 3>, 256> palette{};  // RGB; entries that are not in the file are black
};

class BmpReader {
 public:
  explicit BmpReader(const DecodeInput& in) : in_(in) {}

  Decoded read() {
    read_header();
    check_dimensions(in_, "BMP", header_.width, header_.height);
    Decoded out;
    if (header_.compression == kRle8 || header_.compression == kRle4) {
      read_rle(&out.image);
    } else {
      read_rows(&out.image);
    }
    return out;
  }

 private:
  [[noreturn]] void fail(std::string_view what, ErrorCode code = ErrorCode::kInput) const {
    fail_image(in_, "BMP", what, code);
  }

  const uint8_t* need(size_t at, size_t n) const {
    if (at > in_.bytes.size() || n > in_.bytes.size() - at) fail("the file is truncated");
    return in_.bytes.data() + at;
  }

  void read_header() {
    const size_t offset = read_u32(need(10, 4));
    const uint32_t size = read_u32(need(kFileHeader, 4));
    constexpr uint32_t kSizes[] = {12, 40, 52, 56, 64, 108, 124};
    if (std::find(std::begin(kSizes), std::end(kSizes), size) == std::end(kSizes)) {
      fail("header of " + std::to_string(size) + " bytes; expected 12, 40, 52, 56, 64, 108 or 124",
           ErrorCode::kUnsupported);
    }
    const uint8_t* h = need(kFileHeader, size);
    uint32_t n_colours = 0;
    if (size == 12) {
      header_.width = read_u16(h + 4);
      header_.height = read_u16(h + 6);
      header_.bits = read_u16(h + 10);
    } else {
      header_.width = std::bit_cast<int32_t>(read_u32(h + 4));
      const int64_t height = std::bit_cast<int32_t>(read_u32(h + 8));
      header_.top_down = height < 0;
      header_.height = height < 0 ? -height : height;
      header_.bits = read_u16(h + 14);
      header_.compression = read_u32(h + 16);
      n_colours = read_u32(h + 32);
    }
    check_variant();
    size_t after = kFileHeader + size;
    read_masks(size, &after);
    if (header_.bits <= 8) read_palette(size == 12 ? 3 : 4, n_colours, &after);
    header_.pixels_at = offset == 0 || (offset == kFileHeader + size && header_.bits <= 8) ? after : offset;
  }

  void check_variant() const {
    const uint32_t bits = header_.bits, compression = header_.compression;
    const bool packed = compression == kRle8 || compression == kRle4;
    if (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32) {
      fail(std::to_string(bits) + " bits a pixel; expected 1, 4, 8, 16, 24 or 32", ErrorCode::kUnsupported);
    }
    if (compression > kBitFields || (packed && bits != (compression == kRle8 ? 8u : 4u)) ||
        (compression == kBitFields && bits < 16)) {
      fail("compression " + std::to_string(compression) + " with " + std::to_string(bits) +
               " bits a pixel; expected none, RLE8 with 8, RLE4 with 4 or bit fields with 16 to 32",
           ErrorCode::kUnsupported);
    }
  }

  void read_masks(uint32_t header_size, size_t* after) {
    header_.masks = header_.bits == 16 ? std::array<uint32_t, 3>{0x7c00, 0x3e0, 0x1f}
                                       : std::array<uint32_t, 3>{0xff0000, 0xff00, 0xff};
    if (header_.compression != kBitFields) return;
    // Headers of 52 bytes and more hold the masks; after shorter headers they follow.
    const uint8_t* at = need(kFileHeader + 40, 12);
    std::array<uint32_t, 3> masks{read_u32(at), read_u32(at + 4), read_u32(at + 8)};
    if (header_size < 52) *after += 12;
    const bool is_default = masks == std::array<uint32_t, 3>{0, 0, 0};
    // The fourth byte of 32 bits is alpha if the header declares it, or if all bit fields are zero.
    if (header_.bits == 32) {
      header_.alpha_mask = header_size >= 56 ? read_u32(need(kFileHeader + 52, 4)) : 0;
      if (is_default && header_.alpha_mask == 0) header_.alpha_mask = 0xff000000;
      check_mask(header_.alpha_mask);
    }
    if (is_default) return;
    for (const uint32_t mask : masks) check_mask(mask);
    header_.masks = masks;
  }

  void check_mask(uint32_t mask) const {
    const uint32_t low = mask == 0 ? 0 : mask >> std::countr_zero(mask);
    if ((low & (low + 1)) != 0 || (header_.bits < 32 && mask >> header_.bits != 0)) {
      fail("the bit fields make no sense");
    }
  }

  void read_palette(size_t entry_bytes, uint32_t n_colours, size_t* after) {
    if (n_colours == 0) n_colours = 1u << header_.bits;
    if (n_colours > 65536) fail("a palette of " + std::to_string(n_colours) + " colours; expected at most 65536");
    const uint8_t* entries = need(*after, n_colours * entry_bytes);
    *after += n_colours * entry_bytes;
    for (size_t i = 0; i < std::min<size_t>(n_colours, 256); ++i) {
      const uint8_t* bgr = entries + i * entry_bytes;
      header_.palette[i] = {bgr[2], bgr[1], bgr[0]};
    }
  }

  int64_t target_row(int64_t row) const { return header_.top_down ? row : header_.height - 1 - row; }

  void read_rows(Image* image) {
    const int64_t row_bits = header_.width * header_.bits;
    const int64_t stride = (row_bits + 31) / 32 * 4, used = (row_bits + 7) / 8;
    // The padding of the last row may be missing.
    const uint8_t* pixels = need(header_.pixels_at, static_cast<size_t>(stride * (header_.height - 1) + used));
    *image = Image(header_.width, header_.height);
    for (int64_t row = 0; row < header_.height; ++row) convert_row(pixels + row * stride, image->row(target_row(row)));
  }

  void convert_row(const uint8_t* from, uint8_t* to) const {
    const uint32_t bits = header_.bits;
    for (int64_t x = 0; x < header_.width; ++x, to += 3) {
      if (bits <= 8) {
        const int64_t bit = x * bits;
        const uint32_t index = from[bit / 8] >> (8 - bits - bit % 8) & ((1u << bits) - 1);
        std::memcpy(to, header_.palette[index].data(), 3);
      } else if (bits == 24) {
        to[0] = from[3 * x + 2], to[1] = from[3 * x + 1], to[2] = from[3 * x];
      } else {
        const uint32_t pixel = bits == 16 ? read_u16(from + 2 * x) : read_u32(from + 4 * x);
        const uint8_t alpha = header_.alpha_mask == 0 ? 255 : field(pixel, header_.alpha_mask);
        for (size_t c = 0; c < 3; ++c) to[c] = over_white(field(pixel, header_.masks[c]), alpha);
      }
    }
  }

  // The masked bits as 0..255.
  static uint8_t field(uint32_t pixel, uint32_t mask) {
    if (mask == 0) return 0;
    const int shift = std::countr_zero(mask);
    const uint64_t value = (pixel & mask) >> shift, most = mask >> shift;
    return static_cast<uint8_t>(value * 255 / most);
  }

  // Run-length codes fill the image row by row; skipped pixels have index 0.
  void read_rle(Image* image) {
    const int64_t width = header_.width, total = width * header_.height;
    const bool nibbles = header_.compression == kRle4;
    // A pair of bytes skips at most 255 rows and 255 columns: a file shorter than that cannot fill the image.
    if (total / (256 * (width + 1)) > static_cast<int64_t>(in_.bytes.size())) fail("the file is truncated");
    *image = Image(header_.width, header_.height);
    std::vector<uint8_t> indices(static_cast<size_t>(total), 0);
    int64_t out = 0, x = 0;  // x runs past the width where a run is too long for its row
    size_t at = header_.pixels_at;
    while (out < total) {
      const uint8_t* pair = need(at, 2);
      const int64_t count = pair[0], value = pair[1];
      at += 2;
      if (count > 0) {
        const int64_t n = std::min(std::clamp<int64_t>(width - x, 0, count), total - out);
        for (int64_t i = 0; i < n; ++i) {
          indices[static_cast<size_t>(out++)] = static_cast<uint8_t>(!nibbles     ? value
                                                                     : i % 2 == 0 ? value >> 4
                                                                                  : value & 15);
        }
        x += n;
      } else if (value == 0) {
        out += (width - out % width) % width;
        x = 0;
      } else if (value == 1) {
        break;
      } else if (value == 2) {
        const uint8_t* delta = need(at, 2);
        at += 2;
        out = std::min(total, out + delta[0] + delta[1] * width);
        x = out % width;
      } else {
        const int64_t n = std::min(total - out, value);
        const size_t n_bytes = static_cast<size_t>(nibbles ? (n + 1) / 2 : n);
        const uint8_t* literal = need(at, n_bytes);
        at += n_bytes;
        for (int64_t i = 0; i < n; ++i) {
          indices[static_cast<size_t>(out++)] = !nibbles     ? literal[i]
                                                : i % 2 == 0 ? literal[i / 2] >> 4
                                                             : literal[i / 2] & 15;
        }
        x += value;
        at += at % 2;  // literals end at an even offset in the file
      }
    }
    for (int64_t i = 0; i < total; ++i) {
      std::memcpy(image->row(target_row(i / width)) + 3 * (i % width),
                  header_.palette[indices[static_cast<size_t>(i)]].data(), 3);
    }
  }

  const DecodeInput& in_;
  BmpHeader header_;
};

}  // namespace

Decoded decode_bmp(const DecodeInput& in) { return BmpReader(in).read(); }

}  // namespace vlcache
