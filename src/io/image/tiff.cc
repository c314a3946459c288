// TIFF by libtiff, which reads directories and undoes compressions; samples become RGB here. Of 16 bits the high byte
// is used, as in PNG.
#include "io/image/tiff.h"

#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "io/image/decoders.h"
#include "io/image/orientation.h"
#include "io/image/tiff_directory.h"
#include "io/image/tiff_pixels.h"

namespace vlcache {
namespace {

constexpr uint64_t kMaxBlockBytes = uint64_t{256} << 20;  // a tile, or a strip that is read as a whole
constexpr uint32_t kMaxBlocks = 1 << 20;                  // strips or tiles: 64 million pixels are 250,000 of 16 x 16
constexpr int kMaxSamples = 8;                            // a pixel has
constexpr int64_t kMaxPadding = 2;                        // tiles cover so many times the pixels of the limit
constexpr uint64_t kMaxSharing = 2;                       // strips together have so many times the file's bytes

struct CloseTiff {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
struct FreeOptions {
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
};

// The file in memory, and libtiff's first error.
struct TiffSource {
  std::span<const uint8_t> bytes;
  uint64_t at = 0;
  char message[200] = "";

  static TiffSource& of(thandle_t handle) { return *static_cast<TiffSource*>(handle); }

  static tmsize_t on_read(thandle_t handle, void* to, tmsize_t n) {
    TiffSource& self = of(handle);
    const uint64_t left = self.bytes.size() - std::min<uint64_t>(self.at, self.bytes.size());
    const uint64_t got = std::min<uint64_t>(left, static_cast<uint64_t>(std::max<tmsize_t>(n, 0)));
    if (got > 0) std::memcpy(to, self.bytes.data() + self.at, got);
    self.at += got;
    return static_cast<tmsize_t>(got);
  }
  static tmsize_t on_write(thandle_t, void*, tmsize_t) { return -1; }
  static toff_t on_seek(thandle_t handle, toff_t offset, int whence) {
    TiffSource& self = of(handle);
    self.at = whence == SEEK_CUR ? self.at + offset : whence == SEEK_END ? self.bytes.size() + offset : offset;
    return self.at;
  }
  static int on_close(thandle_t) { return 0; }
  static toff_t on_size(thandle_t handle) { return of(handle).bytes.size(); }
  static int on_map(thandle_t handle, void** base, toff_t* size) {  // only read
    *base = const_cast<uint8_t*>(of(handle).bytes.data());
    *size = of(handle).bytes.size();
    return 1;
  }
  static void on_unmap(thandle_t, void*, toff_t) {}
  static int on_error(TIFF*, void* handle, const char*, const char* format, va_list arguments) {
    TiffSource& self = of(handle);
    if (self.message[0] == '\0') std::vsnprintf(self.message, sizeof(self.message), format, arguments);
    return 1;  // libtiff's global handler is not asked
  }
  static int on_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }
};

// A few of libtiff's messages have no handle: the global handlers print them.
void silence_library() {
  static const bool is_silent = [] {
    TIFFSetErrorHandler(nullptr);
    TIFFSetWarningHandler(nullptr);
    return true;
  }();
  static_cast<void>(is_silent);
}

class TiffPageReader {
 public:
  TiffPageReader(const DecodeInput& in, uint64_t directory) : in_(in), source_{.bytes = in.bytes} {
    check_tiff_directory(in, directory);
    silence_library();
    const std::unique_ptr<TIFFOpenOptions, FreeOptions> options(TIFFOpenOptionsAlloc());
    if (options == nullptr) fail("out of memory", ErrorCode::kMemory);
    TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(),
                                        static_cast<tmsize_t>(std::max<uint64_t>(kMaxBlockBytes, in.bytes.size())));
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), TiffSource::on_error, &source_);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), TiffSource::on_warning, &source_);
    // h: no directory is read yet; c: an uncompressed strip stays one.
    tiff_.reset(TIFFClientOpenExt("", "rhc", &source_, TiffSource::on_read, TiffSource::on_write, TiffSource::on_seek,
                                  TiffSource::on_close, TiffSource::on_size, TiffSource::on_map, TiffSource::on_unmap,
                                  options.get()));
    if (tiff_ == nullptr || TIFFSetSubDirectory(tiff_.get(), directory) == 0) fail_library("its directory");
  }

  Decoded read() {
    read_size();
    read_colours();
    read_layout();
    check_blocks();
    Decoded out;
    out.image = Image(width_, height_);
    image_ = &out.image;
    if (is_separate_) planes_.resize(static_cast<size_t>(width_ * height_ * pixels_.n_used()));
    samples_.resize(static_cast<size_t>(std::max(width_, tile_width_) * std::max<int64_t>(3, n_interleaved())));
    if (is_tiled_) {
      read_tiles();
    } else if (has_ycc_blocks()) {
      read_ycc_strips();
    } else {
      read_rows();
    }
    if (is_separate_) {
      tiff_samples_to_rgb(pixels_, planes_.data(), pixels_.n_used(), width_ * height_, out.image.rgb.data());
    }
    const int orientation = number(TIFFTAG_ORIENTATION);
    out.orientation = orientation >= 1 && orientation <= 8 ? orientation : 1;
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kInput) const {
    fail_image(in_, "TIFF", what, code);
  }
  [[noreturn]] void unsupported(const std::string& what) const { fail(what, ErrorCode::kUnsupported); }

  // libtiff's message in printable ASCII: it may quote the file.
  [[noreturn]] void fail_library(const std::string& part) const {
    std::string words = source_.message;
    std::ranges::replace_if(
        words, [](char c) { return c < ' ' || c > '~'; }, '?');
    fail(part + " cannot be read: it is damaged" + (words.empty() ? "" : " (" + words + ")"));
  }

  // A 16-bit field, or its default; 0: it has none.
  uint16_t number(uint32_t tag) const {
    uint16_t value = 0;
    return TIFFGetFieldDefaulted(tiff_.get(), tag, &value) != 0 ? value : uint16_t{0};
  }

  void read_size() {
    uint32_t width = 0, height = 0, depth = 1;
    TIFFGetField(tiff_.get(), TIFFTAG_IMAGEWIDTH, &width);
    TIFFGetField(tiff_.get(), TIFFTAG_IMAGELENGTH, &height);
    check_dimensions(in_, "TIFF", width, height);
    if (TIFFGetField(tiff_.get(), TIFFTAG_IMAGEDEPTH, &depth) != 0 && depth > 1)
      unsupported("an image of several layers");
    width_ = width;
    height_ = height;
    compression_ = find_tiff_compression(number(TIFFTAG_COMPRESSION));
    if (compression_ == nullptr) unsupported("an unknown compression");
  }

  void read_colours() {
    pixels_.bits = number(TIFFTAG_BITSPERSAMPLE);
    n_samples_ = number(TIFFTAG_SAMPLESPERPIXEL);
    is_separate_ = number(TIFFTAG_PLANARCONFIG) == PLANARCONFIG_SEPARATE && n_samples_ > 1;
    const int format = number(TIFFTAG_SAMPLEFORMAT);
    if (format != SAMPLEFORMAT_UINT && format != SAMPLEFORMAT_VOID) {
      unsupported("signed or floating-point samples; expected unsigned ones");
    }
    if (pixels_.bits < 1 || pixels_.bits > 16) {
      unsupported("samples of " + std::to_string(pixels_.bits) + " bits; expected 1 to 16");
    }
    pixels_.colour = read_photometric();
    if (n_samples_ < pixels_.n_colours() || n_samples_ > kMaxSamples) {
      unsupported(std::to_string(n_samples_) + " samples a pixel; expected " + std::to_string(pixels_.n_colours()) +
                  " to " + std::to_string(kMaxSamples));
    }
    if (pixels_.colour == TiffColour::kPalette) read_palette();
    if (pixels_.colour == TiffColour::kYcc) read_ycc_rule();
    uint16_t n_extra = 0, *extra = nullptr;
    TIFFGetFieldDefaulted(tiff_.get(), TIFFTAG_EXTRASAMPLES, &n_extra, &extra);
    if (n_samples_ == pixels_.n_colours() || n_extra == 0 || extra == nullptr) return;
    if (extra[0] == EXTRASAMPLE_ASSOCALPHA) pixels_.alpha = TiffAlpha::kPremultiplied;
    if (extra[0] == EXTRASAMPLE_UNASSALPHA) pixels_.alpha = TiffAlpha::kStraight;
  }

  TiffColour read_photometric() {
    uint16_t photometric = 0;
    if (TIFFGetField(tiff_.get(), TIFFTAG_PHOTOMETRIC, &photometric) == 0) {
      const bool is_fax = compression_->number >= 2 && compression_->number <= 4;
      photometric = is_fax ? PHOTOMETRIC_MINISWHITE : n_samples_ >= 3 ? PHOTOMETRIC_RGB : PHOTOMETRIC_MINISBLACK;
    }
    switch (photometric) {
      case PHOTOMETRIC_MINISWHITE:
        return TiffColour::kInvertedGrey;
      case PHOTOMETRIC_MINISBLACK:
        return TiffColour::kGrey;
      case PHOTOMETRIC_RGB:
        return TiffColour::kRgb;
      case PHOTOMETRIC_PALETTE:
        return TiffColour::kPalette;
      case PHOTOMETRIC_SEPARATED:
        if (number(TIFFTAG_INKSET) == INKSET_MULTIINK) unsupported("inks other than CMYK");
        return TiffColour::kCmyk;
      case PHOTOMETRIC_YCBCR:
        // libjpeg interpolates the colours and converts them.
        if (compression_->number == COMPRESSION_JPEG && !is_separate_) {
          TIFFSetField(tiff_.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
          return TiffColour::kRgb;
        }
        return TiffColour::kYcc;
      default:
        unsupported("photometric interpretation " + std::to_string(photometric) +
                    "; expected grey, palette, RGB, CMYK or YCbCr");
    }
  }

  void read_palette() {
    if (pixels_.bits > 8) unsupported("a palette of more than 256 colours");
    uint16_t* maps[3] = {};
    if (TIFFGetField(tiff_.get(), TIFFTAG_COLORMAP, &maps[0], &maps[1], &maps[2]) == 0) fail("it has no palette");
    const size_t n = size_t{1} << pixels_.bits;
    bool is_deep = false;  // some writers store 8 bits in 16
    for (const uint16_t* map : maps) is_deep = is_deep || std::any_of(map, map + n, [](uint16_t v) { return v > 255; });
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < 3; ++c) pixels_.palette[i][c] = static_cast<uint8_t>(maps[c][i] >> (is_deep ? 8 : 0));
    }
  }

  void read_ycc_rule() {
    uint16_t across = 0, down = 0;
    TIFFGetFieldDefaulted(tiff_.get(), TIFFTAG_YCBCRSUBSAMPLING, &across, &down);
    const auto is_factor = [](uint16_t n) { return n == 1 || n == 2 || n == 4; };
    if (pixels_.bits != 8 || n_samples_ != 3 || !is_factor(across) || !is_factor(down) ||
        (is_separate_ && across * down > 1)) {
      unsupported("this kind of YCbCr; expected three samples of 8 bits a pixel, interleaved");
    }
    across_ = across;
    down_ = down;
    YccRule rule;
    float *luma = nullptr, *range = nullptr;
    if (TIFFGetFieldDefaulted(tiff_.get(), TIFFTAG_YCBCRCOEFFICIENTS, &luma) != 0 && luma != nullptr) {
      std::copy_n(luma, 3, rule.luma.begin());
    }
    if (TIFFGetFieldDefaulted(tiff_.get(), TIFFTAG_REFERENCEBLACKWHITE, &range) != 0 && range != nullptr) {
      std::copy_n(range, 6, rule.range.begin());
    }
    if (rule.is_usable()) pixels_.ycc = rule;
  }

  bool has_ycc_blocks() const { return pixels_.colour == TiffColour::kYcc && !is_separate_; }
  int64_t n_interleaved() const { return is_separate_ ? 1 : n_samples_; }
  int n_planes() const { return is_separate_ ? pixels_.n_used() : 1; }
  uint64_t packed_bytes(int64_t width) const {
    return static_cast<uint64_t>((width * n_interleaved() * pixels_.bits + 7) / 8);
  }
  YccBlocks ycc_blocks(int64_t width) const { return {.width = width, .across = across_, .down = down_}; }
  uint64_t ycc_bytes(int64_t width, int64_t n_rows) const {
    const YccBlocks blocks = ycc_blocks(width);
    return static_cast<uint64_t>((n_rows + down_ - 1) / down_ * blocks.n_across() * blocks.bytes());
  }

  // Of strips or tiles, whose sizes libtiff must see as this class does.
  void read_layout() {
    is_tiled_ = TIFFIsTiled(tiff_.get()) != 0;
    n_blocks_ = is_tiled_ ? TIFFNumberOfTiles(tiff_.get()) : TIFFNumberOfStrips(tiff_.get());
    if (n_blocks_ > kMaxBlocks) {
      fail(std::to_string(n_blocks_) + " strips or tiles; the limit is " + std::to_string(kMaxBlocks),
           ErrorCode::kMemory);
    }
    const uint64_t row_bytes = is_tiled_ ? TIFFTileRowSize64(tiff_.get()) : TIFFScanlineSize64(tiff_.get());
    if (is_tiled_) {
      uint32_t width = 0, height = 0;
      TIFFGetField(tiff_.get(), TIFFTAG_TILEWIDTH, &width);
      TIFFGetField(tiff_.get(), TIFFTAG_TILELENGTH, &height);
      check_tiles(width, height);
    }
    const int64_t width = is_tiled_ ? tile_width_ : width_;
    if (!has_ycc_blocks() && row_bytes != packed_bytes(width)) fail("its rows have an unexpected size");
    const int64_t least =
        has_ycc_blocks() ? width_ * height_ : static_cast<int64_t>(packed_bytes(width_)) * height_ * n_planes();
    if (compression_->max_ratio > 0 && least / compression_->max_ratio > static_cast<int64_t>(in_.bytes.size())) {
      fail("the file is too short for its " + std::to_string(width_) + " x " + std::to_string(height_) + " pixels");
    }
  }

  void check_tiles(int64_t width, int64_t height) {
    const auto padded = [](int64_t size, int64_t step) { return (size + step - 1) / step * step; };
    if (width <= 0 || height <= 0) fail("its tiles have no pixels");
    if (width > in_.limits.max_side || height > in_.limits.max_side ||
        padded(width_, width) > kMaxPadding * in_.limits.max_pixels / padded(height_, height) ||
        TIFFTileSize64(tiff_.get()) > kMaxBlockBytes) {
      fail("tiles of " + std::to_string(width) + " x " + std::to_string(height) + " pixels are too large",
           ErrorCode::kMemory);
    }
    tile_width_ = width;
    tile_height_ = height;
  }

  // Strips or tiles that share bytes would make a small file cost as much as a large one.
  void check_blocks() const {
    const uint64_t file_bytes = in_.bytes.size();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_blocks_; ++i) {
      const uint64_t at = TIFFGetStrileOffset(tiff_.get(), i), n = TIFFGetStrileByteCount(tiff_.get(), i);
      if (at > file_bytes || n > file_bytes - at) {
        fail("the file is truncated: its pixels end at byte " + std::to_string(at + std::min(n, ~at)) + " of " +
             std::to_string(file_bytes));
      }
      sum += n;
      if (sum > kMaxSharing * file_bytes) fail("its strips or tiles overlap");
      if (compression_->number == COMPRESSION_JPEG) {
        check_jpeg_scans(in_, "TIFF", in_.bytes.subspan(at, n), width_ * height_);
      }
    }
  }

  // Rows are read one by one, however many a strip has. What a damaged strip leaves out is 0.
  void read_rows() {
    std::vector<uint8_t> row(packed_bytes(width_));
    for (int plane = 0; plane < n_planes(); ++plane) {
      for (int64_t y = 0; y < height_; ++y) {
        std::ranges::fill(row, uint8_t{0});
        if (TIFFReadScanline(tiff_.get(), row.data(), static_cast<uint32_t>(y), static_cast<uint16_t>(plane)) != 1) {
          fail_library("the pixel data");
        }
        put({.x = 0, .y = y, .n = width_, .plane = plane}, row.data());
      }
    }
  }

  void read_tiles() {
    std::vector<uint8_t> tile(TIFFTileSize64(tiff_.get()));
    const uint64_t needed = has_ycc_blocks() ? ycc_bytes(tile_width_, tile_height_)
                                             : packed_bytes(tile_width_) * static_cast<uint64_t>(tile_height_);
    if (tile.size() < needed) fail("its tiles have an unexpected size");
    for (int plane = 0; plane < n_planes(); ++plane) {
      for (int64_t y = 0; y < height_; y += tile_height_) {
        for (int64_t x = 0; x < width_; x += tile_width_) {
          std::ranges::fill(tile, uint8_t{0});
          const uint32_t index = TIFFComputeTile(tiff_.get(), static_cast<uint32_t>(x), static_cast<uint32_t>(y), 0,
                                                 static_cast<uint16_t>(plane));
          if (TIFFReadEncodedTile(tiff_.get(), index, tile.data(), static_cast<tmsize_t>(tile.size())) < 0) {
            fail_library("the pixel data");
          }
          put_tile({.x = x, .y = y, .n = std::min(tile_width_, width_ - x), .plane = plane}, tile.data());
        }
      }
    }
  }

  void read_ycc_strips() {
    uint32_t given = 0;
    TIFFGetFieldDefaulted(tiff_.get(), TIFFTAG_ROWSPERSTRIP, &given);
    const int64_t rows = std::min<int64_t>(given, height_);
    const uint64_t bytes = ycc_bytes(width_, rows);
    if (rows == 0 || bytes > kMaxBlockBytes) fail("a strip of " + std::to_string(bytes) + " bytes", ErrorCode::kMemory);
    std::vector<uint8_t> strip(bytes);
    for (int64_t y = 0; y < height_; y += rows) {
      std::ranges::fill(strip, uint8_t{0});
      const int64_t n_rows = std::min(rows, height_ - y);
      if (TIFFReadEncodedStrip(tiff_.get(), static_cast<uint32_t>(y / rows), strip.data(),
                               static_cast<tmsize_t>(ycc_bytes(width_, n_rows))) < 0) {
        fail_library("the pixel data");
      }
      for (int64_t r = 0; r < n_rows; ++r) {
        spread_ycc_row(ycc_blocks(width_), strip.data(), r, samples_.data());
        tiff_samples_to_rgb(pixels_, samples_.data(), 3, width_, image_->row(y + r));
      }
    }
  }

  struct Run {
    int64_t x, y, n;  // pixels of a row
    int plane;
  };

  void put_tile(Run run, const uint8_t* tile) {
    const int64_t end = std::min(run.y + tile_height_, height_);
    for (int64_t row = 0; run.y < end; ++run.y, ++row) {
      if (has_ycc_blocks()) {
        spread_ycc_row(ycc_blocks(tile_width_), tile, row, samples_.data());
        tiff_samples_to_rgb(pixels_, samples_.data(), 3, run.n, image_->row(run.y) + 3 * run.x);
      } else {
        put(run, tile + static_cast<uint64_t>(row) * packed_bytes(tile_width_));
      }
    }
  }

  void put(const Run& run, const uint8_t* packed) {
    unpack_tiff_samples(pixels_, packed, run.n * n_interleaved(), samples_.data());
    if (!is_separate_) {
      tiff_samples_to_rgb(pixels_, samples_.data(), n_samples_, run.n, image_->row(run.y) + 3 * run.x);
      return;
    }
    const int n_used = pixels_.n_used();
    uint8_t* to = planes_.data() + (run.y * width_ + run.x) * n_used + run.plane;
    for (int64_t i = 0; i < run.n; ++i) to[i * n_used] = samples_[static_cast<size_t>(i)];
  }

  const DecodeInput& in_;
  TiffSource source_;
  std::unique_ptr<TIFF, CloseTiff> tiff_;
  const TiffCompression* compression_ = nullptr;
  TiffPixels pixels_;
  int64_t width_ = 0, height_ = 0, tile_width_ = 0, tile_height_ = 0;
  int n_samples_ = 0, across_ = 1, down_ = 1;
  bool is_separate_ = false, is_tiled_ = false;  // planes one after the other; tiles instead of strips
  uint32_t n_blocks_ = 0;
  Image* image_ = nullptr;
  std::vector<uint8_t> samples_;  // one row
  std::vector<uint8_t> planes_;   // [height, width, n_used]
};

}  // namespace

Decoded decode_tiff(const DecodeInput& in) { return TiffPageReader(in, find_tiff_pages(in).front()).read(); }

Image decode_tiff_page(std::span<const std::byte> tiff, uint64_t directory, std::string_view where,
                       const ImageLimits& limits) {
  const DecodeInput in{{reinterpret_cast<const uint8_t*>(tiff.data()), tiff.size()}, where, limits};
  Decoded decoded = TiffPageReader(in, directory).read();
  return apply_orientation(std::move(decoded.image), decoded.orientation);
}

}  // namespace vlcache
