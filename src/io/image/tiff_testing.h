// Makes TIFFs for tests, by libtiff.
#pragma once

#include <tiffio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace vlcache {

struct TiffForm {
  const char* mode = "wl";  // b: big-endian, 8: BigTIFF
  int compression = COMPRESSION_NONE, photometric = PHOTOMETRIC_RGB, bits = 8, samples = 3;
  bool separate = false;
  int tile = 0, rows = 5;  // pixels of a tile's side; of strips, rows
  int orientation = 1, extra = -1, subfile = 0, fill_order = FILLORDER_MSB2LSB;
  bool two_dimensional = false;  // CCITT G3
};

// A page: samples[height, width, form.samples].
struct TiffTestPage {
  TiffForm form;
  int width = 0, height = 0;
  std::vector<uint16_t> samples;
};

class TiffFile {
 public:
  explicit TiffFile(const char* mode) {
    TIFFSetWarningHandler(nullptr);
    tiff_ = TIFFClientOpen("test", mode, this, on_read, on_write, on_seek, on_close, on_size, nullptr, nullptr);
  }
  ~TiffFile() {
    if (tiff_ != nullptr) TIFFClose(tiff_);
  }
  TiffFile(const TiffFile&) = delete;
  TiffFile& operator=(const TiffFile&) = delete;

  TIFF* get() { return tiff_; }
  std::string finish() {
    TIFFClose(std::exchange(tiff_, nullptr));
    return bytes_;
  }

 private:
  static TiffFile& of(thandle_t handle) { return *static_cast<TiffFile*>(handle); }
  static tmsize_t on_read(thandle_t handle, void* to, tmsize_t n) {
    TiffFile& self = of(handle);
    const size_t got = std::min(static_cast<size_t>(n), self.bytes_.size() - std::min(self.at_, self.bytes_.size()));
    std::memcpy(to, self.bytes_.data() + self.at_, got);
    self.at_ += got;
    return static_cast<tmsize_t>(got);
  }
  static tmsize_t on_write(thandle_t handle, void* from, tmsize_t n) {
    TiffFile& self = of(handle);
    self.bytes_.resize(std::max(self.bytes_.size(), self.at_ + static_cast<size_t>(n)));
    std::memcpy(self.bytes_.data() + self.at_, from, static_cast<size_t>(n));
    self.at_ += static_cast<size_t>(n);
    return n;
  }
  static toff_t on_seek(thandle_t handle, toff_t offset, int whence) {
    TiffFile& self = of(handle);
    self.at_ = static_cast<size_t>(whence == SEEK_CUR   ? self.at_ + offset
                                   : whence == SEEK_END ? self.bytes_.size() + offset
                                                        : offset);
    return self.at_;
  }
  static int on_close(thandle_t) { return 0; }
  static toff_t on_size(thandle_t handle) { return of(handle).bytes_.size(); }

  std::string bytes_;
  size_t at_ = 0;
  TIFF* tiff_ = nullptr;
};

// Samples as TIFF packs them, 16 bits in the machine's order.
inline std::vector<uint8_t> pack_samples(const std::vector<uint16_t>& samples, int bits) {
  std::vector<uint8_t> packed((samples.size() * static_cast<size_t>(bits) + 7) / 8);
  if (bits == 16) std::memcpy(packed.data(), samples.data(), packed.size());
  if (bits == 8) std::ranges::copy(samples, packed.begin());
  for (size_t i = 0; i < samples.size() && bits % 8 != 0; ++i) {
    for (int b = 0; b < bits; ++b) {
      const size_t at = i * static_cast<size_t>(bits) + static_cast<size_t>(b);
      if ((samples[i] >> (bits - 1 - b) & 1) != 0) packed[at / 8] |= static_cast<uint8_t>(0x80 >> at % 8);
    }
  }
  return packed;
}

inline void write_tiff_page(TIFF* tiff, const TiffTestPage& page) {
  const TiffForm& f = page.form;
  TIFFSetField(tiff, TIFFTAG_IMAGEWIDTH, page.width);
  TIFFSetField(tiff, TIFFTAG_IMAGELENGTH, page.height);
  TIFFSetField(tiff, TIFFTAG_BITSPERSAMPLE, f.bits);
  TIFFSetField(tiff, TIFFTAG_SAMPLESPERPIXEL, f.samples);
  TIFFSetField(tiff, TIFFTAG_COMPRESSION, f.compression);
  TIFFSetField(tiff, TIFFTAG_PHOTOMETRIC, f.photometric);
  TIFFSetField(tiff, TIFFTAG_PLANARCONFIG, f.separate ? PLANARCONFIG_SEPARATE : PLANARCONFIG_CONTIG);
  TIFFSetField(tiff, TIFFTAG_FILLORDER, f.fill_order);
  if (f.orientation > 1) TIFFSetField(tiff, TIFFTAG_ORIENTATION, f.orientation);
  if (f.subfile > 0) TIFFSetField(tiff, TIFFTAG_SUBFILETYPE, f.subfile);
  if (f.two_dimensional) TIFFSetField(tiff, TIFFTAG_GROUP3OPTIONS, GROUP3OPT_2DENCODING);
  if (f.compression == COMPRESSION_JPEG) {
    TIFFSetField(tiff, TIFFTAG_JPEGQUALITY, 95);
    if (f.photometric == PHOTOMETRIC_YCBCR) TIFFSetField(tiff, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
  }
  if (f.extra >= 0) {
    const uint16_t kind = static_cast<uint16_t>(f.extra);
    TIFFSetField(tiff, TIFFTAG_EXTRASAMPLES, 1, &kind);
  }
  if (f.photometric == PHOTOMETRIC_PALETTE) {  // colours i * 5, i * 11 and i * 23 of 8 bits
    std::vector<uint16_t> maps[3];
    for (int c = 0; c < 3; ++c) {
      for (int i = 0; i < 1 << f.bits; ++i)
        maps[c].push_back(static_cast<uint16_t>((i * (c == 0 ? 5 : c == 1 ? 11 : 23) & 255) * 257));
    }
    TIFFSetField(tiff, TIFFTAG_COLORMAP, maps[0].data(), maps[1].data(), maps[2].data());
  }
  if (f.tile > 0) {
    TIFFSetField(tiff, TIFFTAG_TILEWIDTH, f.tile);
    TIFFSetField(tiff, TIFFTAG_TILELENGTH, f.tile);
  } else {
    TIFFSetField(tiff, TIFFTAG_ROWSPERSTRIP, f.rows);
  }
  const int n_planes = f.separate ? f.samples : 1, n_interleaved = f.separate ? 1 : f.samples;
  const auto row = [&](int y, int x0, int width, int plane) {  // beyond the edges: the last pixels
    std::vector<uint16_t> out;
    for (int x = x0; x < x0 + width; ++x) {
      const int pixel = std::min(y, page.height - 1) * page.width + std::min(x, page.width - 1);
      for (int s = 0; s < n_interleaved; ++s) {
        out.push_back(page.samples[static_cast<size_t>(pixel * f.samples + plane + s)]);
      }
    }
    return pack_samples(out, f.bits);
  };
  for (int plane = 0; plane < n_planes; ++plane) {
    for (int y = 0; y < page.height && f.tile == 0; ++y) {
      TIFFWriteScanline(tiff, row(y, 0, page.width, plane).data(), static_cast<uint32_t>(y),
                        static_cast<uint16_t>(plane));
    }
    for (int y = 0; y < page.height && f.tile > 0; y += f.tile) {
      for (int x = 0; x < page.width; x += f.tile) {
        std::vector<uint8_t> tile;
        for (int r = 0; r < f.tile; ++r) {
          const std::vector<uint8_t> one = row(y + r, x, f.tile, plane);
          tile.insert(tile.end(), one.begin(), one.end());
        }
        TIFFWriteTile(tiff, tile.data(), static_cast<uint32_t>(x), static_cast<uint32_t>(y), 0,
                      static_cast<uint16_t>(plane));
      }
    }
  }
  TIFFWriteDirectory(tiff);
}

// The file of these pages, in the mode of the first.
inline std::string make_tiff(const std::vector<TiffTestPage>& pages) {
  TiffFile file(pages.front().form.mode);
  for (const TiffTestPage& page : pages) write_tiff_page(file.get(), page);
  return file.finish();
}

// A small grey page of one level.
inline TiffTestPage grey_page(uint8_t level, int width = 8, int height = 6) {
  const TiffForm form{.photometric = PHOTOMETRIC_MINISBLACK, .samples = 1};
  return {form, width, height, std::vector<uint16_t>(static_cast<size_t>(width * height), level)};
}

inline std::span<const std::byte> tiff_bytes(const std::string& tiff) { return std::as_bytes(std::span(tiff)); }

}  // namespace vlcache
