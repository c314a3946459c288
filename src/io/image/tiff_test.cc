// TIFFs of every kind against the samples that they were made of, and files that are damaged or claim too much.
#include "io/image/tiff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"
#include "io/image/encode.h"
#include "io/image/orientation.h"
#include "io/image/tiff_testing.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kWidth = 37, kHeight = 29;

TiffTestPage page_of(const TiffForm& form, int width = kWidth, int height = kHeight) {
  TiffTestPage page{form, width, height, {}};
  uint32_t random = 5;
  for (int i = 0; i < width * height * form.samples; ++i) {
    random = random * 1664525 + 1013904223;
    const bool is_flat = i / form.samples % width < width / 3;  // runs, for compressions
    page.samples.push_back(static_cast<uint16_t>(
        (is_flat ? static_cast<uint32_t>(i / form.samples / width) : random >> 9) & ((1U << form.bits) - 1)));
  }
  return page;
}

// Of the samples, by the TIFF specification.
Image expected_image(const TiffTestPage& page) {
  const TiffForm& f = page.form;
  Image image(page.width, page.height);
  const int most = (1 << f.bits) - 1;
  for (size_t i = 0; i < image.rgb.size() / 3; ++i) {
    const uint16_t* s = page.samples.data() + i * static_cast<size_t>(f.samples);
    const auto level = [&](int sample) { return f.bits > 8 ? s[sample] >> (f.bits - 8) : s[sample] * 255 / most; };
    for (int c = 0; c < 3; ++c) {
      int value = 0, n_colours = 1;
      if (f.photometric == PHOTOMETRIC_RGB) {
        value = level(c), n_colours = 3;
      } else if (f.photometric == PHOTOMETRIC_PALETTE) {
        value = s[0] * (c == 0 ? 5 : c == 1 ? 11 : 23) & 255;
      } else if (f.photometric == PHOTOMETRIC_SEPARATED) {
        value = static_cast<int>((255 - level(c)) * (255 - level(3)) / 255.0 + 0.5), n_colours = 4;
      } else {
        value = f.photometric == PHOTOMETRIC_MINISWHITE ? 255 - level(0) : level(0);
      }
      if (f.extra == EXTRASAMPLE_ASSOCALPHA) value = std::min(255, value + 255 - level(n_colours));
      if (f.extra == EXTRASAMPLE_UNASSALPHA) {
        value = (value * level(n_colours) + 255 * (255 - level(n_colours)) + 127) / 255;
      }
      image.rgb[3 * i + static_cast<size_t>(c)] = static_cast<uint8_t>(value);
    }
  }
  return image;
}

std::string name_of(const TiffForm& f) {
  return std::string(f.mode) + " compression " + std::to_string(f.compression) + " photometric " +
         std::to_string(f.photometric) + " bits " + std::to_string(f.bits) + " samples " + std::to_string(f.samples) +
         (f.separate ? " separate" : "") + " tile " + std::to_string(f.tile) + " extra " + std::to_string(f.extra);
}

// The largest difference of a channel.
int difference(const Image& a, const Image& b) {
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.height, b.height);
  if (a.rgb.size() != b.rgb.size()) return 999;
  int most = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) most = std::max(most, std::abs(a.rgb[i] - b.rgb[i]));
  return most;
}

void expect_pixels(const TiffForm& form, int tolerance = 0) {
  SCOPED_TRACE(name_of(form));
  const TiffTestPage page = page_of(form);
  const std::string tiff = make_tiff({page});
  EXPECT_EQ(media_type(tiff_bytes(tiff)), "image/tiff");
  EXPECT_LE(difference(decode_image(tiff_bytes(tiff), "test"), expected_image(page)), tolerance);
}

TEST(Tiff, EverySampleFormatIsRead) {
  const TiffForm forms[] = {{.photometric = PHOTOMETRIC_RGB},
                            {.photometric = PHOTOMETRIC_RGB, .bits = 16},
                            {.photometric = PHOTOMETRIC_RGB, .samples = 4, .extra = EXTRASAMPLE_UNASSALPHA},
                            {.photometric = PHOTOMETRIC_RGB, .samples = 4, .extra = EXTRASAMPLE_ASSOCALPHA},
                            {.photometric = PHOTOMETRIC_RGB, .samples = 4, .extra = EXTRASAMPLE_UNSPECIFIED},
                            {.photometric = PHOTOMETRIC_RGB, .bits = 16, .samples = 4, .extra = EXTRASAMPLE_UNASSALPHA},
                            {.photometric = PHOTOMETRIC_MINISBLACK, .samples = 2, .extra = EXTRASAMPLE_UNASSALPHA},
                            {.photometric = PHOTOMETRIC_SEPARATED, .samples = 4},
                            {.photometric = PHOTOMETRIC_SEPARATED, .bits = 16, .samples = 4},
                            {.photometric = PHOTOMETRIC_PALETTE, .bits = 1, .samples = 1},
                            {.photometric = PHOTOMETRIC_PALETTE, .bits = 2, .samples = 1},
                            {.photometric = PHOTOMETRIC_PALETTE, .bits = 4, .samples = 1},
                            {.photometric = PHOTOMETRIC_PALETTE, .bits = 8, .samples = 1}};
  std::vector<TiffForm> all(std::begin(forms), std::end(forms));
  for (const int bits : {1, 2, 4, 8, 12, 16}) {
    for (const int photometric : {PHOTOMETRIC_MINISBLACK, PHOTOMETRIC_MINISWHITE}) {
      all.push_back({.photometric = photometric, .bits = bits, .samples = 1});
    }
  }
  for (TiffForm form : all) {
    for (const int tile : {0, 16}) {
      form.tile = tile;
      form.separate = false;
      expect_pixels(form, form.photometric == PHOTOMETRIC_SEPARATED ? 1 : 0);
      form.separate = true;
      if (form.samples > 1) expect_pixels(form, form.photometric == PHOTOMETRIC_SEPARATED ? 1 : 0);
    }
  }
}

TEST(Tiff, EveryCompressionAndByteOrderIsRead) {
  for (const char* mode : {"wl", "wb", "wl8", "wb8"}) {
    for (const int compression :
         {COMPRESSION_NONE, COMPRESSION_PACKBITS, COMPRESSION_LZW, COMPRESSION_ADOBE_DEFLATE, COMPRESSION_DEFLATE}) {
      expect_pixels({.mode = mode, .compression = compression});
      expect_pixels({.mode = mode, .compression = compression, .bits = 16, .separate = true, .tile = 32});
    }
  }
  for (const int rows : {1, 4, 1000}) expect_pixels({.compression = COMPRESSION_LZW, .rows = rows});
}

TEST(Tiff, FaxesAreRead) {
  for (const int photometric : {PHOTOMETRIC_MINISWHITE, PHOTOMETRIC_MINISBLACK}) {
    for (const int order : {FILLORDER_MSB2LSB, FILLORDER_LSB2MSB}) {
      for (const int compression : {COMPRESSION_CCITTRLE, COMPRESSION_CCITTFAX3, COMPRESSION_CCITTFAX4}) {
        TiffForm form{
            .compression = compression, .photometric = photometric, .bits = 1, .samples = 1, .fill_order = order};
        expect_pixels(form);
        form.two_dimensional = true;
        if (compression == COMPRESSION_CCITTFAX3) expect_pixels(form);
      }
    }
  }
}

// Slopes, which JPEG keeps.
TiffTestPage slopes(const TiffForm& form) {
  TiffTestPage page{form, kWidth, kHeight, {}};
  for (int i = 0; i < kWidth * kHeight; ++i) {
    for (int s = 0; s < form.samples; ++s) {
      page.samples.push_back(static_cast<uint16_t>(s == 0 ? 30 + i % kWidth * 4 : s == 1 ? 40 + i / kWidth * 5 : 128));
    }
  }
  return page;
}

TEST(Tiff, JpegIsRead) {
  for (const int tile : {0, 16}) {
    for (const int photometric : {PHOTOMETRIC_YCBCR, PHOTOMETRIC_RGB, PHOTOMETRIC_MINISBLACK}) {
      const TiffForm form{.compression = COMPRESSION_JPEG,
                          .photometric = photometric,
                          .samples = photometric == PHOTOMETRIC_MINISBLACK ? 1 : 3,
                          .tile = tile,
                          .rows = 16};
      SCOPED_TRACE(name_of(form));
      TiffTestPage page = slopes(form);
      const Image image = decode_image(tiff_bytes(make_tiff({page})), "test");
      if (photometric == PHOTOMETRIC_YCBCR) page.form.photometric = PHOTOMETRIC_RGB;
      EXPECT_LE(difference(image, expected_image(page)), 12);
    }
  }
}

// Blocks of luma samples with one Cb and Cr each, all of them grey or red.
std::string ycc_tiff(int across, int down, int tile, const std::vector<uint8_t>& cb_cr) {
  TiffFile file("wl");
  const int width = tile > 0 ? tile : kWidth, height = tile > 0 ? tile : kHeight;
  TIFFSetField(file.get(), TIFFTAG_IMAGEWIDTH, kWidth);
  TIFFSetField(file.get(), TIFFTAG_IMAGELENGTH, kHeight);
  TIFFSetField(file.get(), TIFFTAG_BITSPERSAMPLE, 8);
  TIFFSetField(file.get(), TIFFTAG_SAMPLESPERPIXEL, 3);
  TIFFSetField(file.get(), TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_YCBCR);
  TIFFSetField(file.get(), TIFFTAG_PLANARCONFIG, PLANARCONFIG_CONTIG);
  TIFFSetField(file.get(), TIFFTAG_YCBCRSUBSAMPLING, across, down);
  if (tile > 0) {
    TIFFSetField(file.get(), TIFFTAG_TILEWIDTH, tile);
    TIFFSetField(file.get(), TIFFTAG_TILELENGTH, tile);
  } else {
    TIFFSetField(file.get(), TIFFTAG_ROWSPERSTRIP, kHeight);
  }
  std::vector<uint8_t> block;
  for (int y = 0; y < height; y += down) {
    for (int x = 0; x < width; x += across) {
      for (int dy = 0; dy < down; ++dy) {
        for (int dx = 0; dx < across; ++dx) block.push_back(static_cast<uint8_t>(60 + x + dx + 2 * (y + dy)));
      }
      block.insert(block.end(), cb_cr.begin(), cb_cr.end());
    }
  }
  const uint32_t n_blocks = tile > 0 ? TIFFNumberOfTiles(file.get()) : 1;
  for (uint32_t i = 0; i < n_blocks; ++i) {
    const auto n = static_cast<tmsize_t>(block.size());
    tile > 0 ? TIFFWriteEncodedTile(file.get(), i, block.data(), n)
             : TIFFWriteEncodedStrip(file.get(), i, block.data(), n);
  }
  return file.finish();
}

TEST(Tiff, SubsampledColoursAreRead) {
  for (const auto& [across, down] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{2, 2}, std::pair{4, 2}}) {
    for (const int tile : {0, 16}) {
      SCOPED_TRACE(std::to_string(across) + " x " + std::to_string(down) + ", tile " + std::to_string(tile));
      const Image grey = decode_image(tiff_bytes(ycc_tiff(across, down, tile, {128, 128})), "test");
      const Image red = decode_image(tiff_bytes(ycc_tiff(across, down, tile, {128, 158})), "test");
      for (int y = 0; y < kHeight; ++y) {
        for (int x = 0; x < kWidth; ++x) {
          const int level = 60 + (tile > 0 ? x % tile + 2 * (y % tile) : x + 2 * y);
          ASSERT_THAT(std::vector<uint8_t>(grey.row(y) + 3 * x, grey.row(y) + 3 * x + 3),
                      ElementsAre(level, level, level));
          ASSERT_NEAR(red.row(y)[3 * x], level + 42, 1);  // 1.402 * 30
          ASSERT_NEAR(red.row(y)[3 * x + 1], level - 21, 1);
          ASSERT_NEAR(red.row(y)[3 * x + 2], level, 1);
        }
      }
    }
  }
}

TEST(Tiff, PagesAreTurnedUpright) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const TiffTestPage page = page_of({.orientation = orientation});
    const Image image = decode_image(tiff_bytes(make_tiff({page})), "test");
    EXPECT_EQ(difference(image, apply_orientation(expected_image(page), orientation)), 0) << orientation;
  }
}

std::vector<int> levels_of(const std::string& tiff) {
  std::vector<int> levels;
  for (const uint64_t page : tiff_pages(tiff_bytes(tiff), "test")) {
    levels.push_back(decode_tiff_page(tiff_bytes(tiff), page, "test").rgb[0]);
  }
  return levels;
}

TEST(Tiff, PagesAreFoundInOrderWithoutThumbnails) {
  for (const char* mode : {"wl", "wb", "wl8", "wb8"}) {
    std::vector<TiffTestPage> pages{grey_page(1), grey_page(10, 4, 3), grey_page(20), grey_page(30), grey_page(40)};
    pages[0].form.mode = mode;
    pages[1].form.subfile = FILETYPE_REDUCEDIMAGE;
    pages[2].form.subfile = FILETYPE_PAGE;
    pages[3].form.subfile = FILETYPE_MASK;
    EXPECT_THAT(levels_of(make_tiff(pages)), ElementsAre(1, 20, 40)) << mode;
    EXPECT_THAT(levels_of(make_tiff({pages[1]})), ElementsAre(10)) << mode;
    EXPECT_EQ(decode_image(tiff_bytes(make_tiff(pages)), "test").rgb[0], 1);
  }
}

// --- Bad files ---

std::string image_error(const std::string& tiff, const ImageLimits& limits = {}) {
  return error_of([&] { decode_image(tiff_bytes(tiff), "t.tif", limits); });
}
std::string page_error(const std::string& tiff) {
  return error_of([&] { tiff_pages(tiff_bytes(tiff), "t.tif"); });
}

std::string le(uint64_t value, int n) {
  std::string bytes;
  for (int i = 0; i < n; ++i) bytes += static_cast<char>(value >> 8 * i & 255);
  return bytes;
}

struct TestEntry {
  int tag, type;
  uint32_t count, value;
};

// A little-endian TIFF with one directory, which is followed by `next`, and then by `data` at byte 8 + 6 + 12 n.
std::string raw_tiff(const std::vector<TestEntry>& entries, const std::string& data = "", uint32_t next = 0) {
  std::string tiff = std::string("II*\0", 4) + le(8, 4) + le(entries.size(), 2);
  for (const TestEntry& e : entries) {
    tiff +=
        le(static_cast<uint64_t>(e.tag), 2) + le(static_cast<uint64_t>(e.type), 2) + le(e.count, 4) + le(e.value, 4);
  }
  return tiff + le(next, 4) + data;
}

// A grey image of 8 bits whose strip has n bytes at byte `at`.
std::vector<TestEntry> grey_entries(uint32_t width, uint32_t height, uint32_t compression, uint32_t at, uint32_t n) {
  return {{256, 4, 1, width},       {257, 4, 1, height}, {258, 3, 1, 8},
          {259, 3, 1, compression}, {262, 3, 1, 1},      {273, 4, 1, at},
          {277, 3, 1, 1},           {278, 4, 1, height}, {279, 4, 1, n}};
}
constexpr uint32_t kDataAt = 8 + 6 + 12 * 9;

TEST(Tiff, ChainsOfDirectoriesAreBounded) {
  EXPECT_EQ(page_error(std::string("II*\0", 4)), "t.tif: TIFF: the file is truncated");
  EXPECT_EQ(page_error(std::string("II*\0\0\0\0\0", 8)), "t.tif: TIFF: it has no page");
  EXPECT_THAT(page_error(std::string("MM\0*\x7f\0\0\0", 8)), HasSubstr("does not lie within the file's 8 bytes"));
  EXPECT_EQ(page_error(raw_tiff(grey_entries(2, 2, 1, kDataAt, 4), "abcd", 8)),
            "t.tif: TIFF: its directories form a loop");
  EXPECT_THAT(page_error(raw_tiff(grey_entries(2, 2, 1, kDataAt, 4), "abcd", 500)), HasSubstr("truncated or damaged"));
  // The first page is not shown as if it were all.
  EXPECT_THAT(image_error(raw_tiff(grey_entries(2, 2, 1, kDataAt, 4), "abcd", 500)), HasSubstr("truncated or damaged"));
  std::string many = std::string("II*\0", 4) + le(8, 4);
  for (uint32_t i = 0; i < 66'000; ++i) many += le(1, 2) + std::string(12, '\0') + le(8 + 18 * (i + 1), 4);
  EXPECT_EQ(page_error(many + std::string(18, '\0')), "t.tif: TIFF: more than 65536 directories, each a page");
  EXPECT_THAT(page_error(std::string("II*\0", 4) + le(8, 4) + le(60'000, 2) + std::string(720'100, '\0')),
              HasSubstr("a directory of 60000 entries"));
}

TEST(Tiff, BombsAreRefusedBeforePixelsAreAllocated) {
  const ImageLimits limits{.max_pixels = 64'000'000};
  const auto grey = [&](uint32_t width, uint32_t height, uint32_t compression, const std::string& data) {
    const auto n = static_cast<uint32_t>(data.size());
    return image_error(raw_tiff(grey_entries(width, height, compression, kDataAt, n), data), limits);
  };
  EXPECT_EQ(grey(2, 2, 1, "abcd"), "no error");
  EXPECT_THAT(grey(100'000, 100'000, 1, "abcd"), HasSubstr("the limit is 64000000 pixels"));
  EXPECT_THAT(grey(8000, 8000, 1, "abcd"), HasSubstr("too short for its 8000 x 8000 pixels"));
  EXPECT_THAT(grey(8000, 8000, 5, std::string(1000, 'x')), HasSubstr("too short for its 8000 x 8000 pixels"));
  EXPECT_THAT(grey(8000, 8000, 8, std::string(1000, 'x')), HasSubstr("too short"));
  EXPECT_THAT(grey(8000, 8000, 32773, std::string(1000, 'x')), HasSubstr("too short"));
  EXPECT_THAT(image_error(raw_tiff(grey_entries(2, 2, 5, kDataAt, 40), "abcd")), HasSubstr("the file is truncated"));
  // 100 strips of one row, all of the same bytes.
  std::vector<TestEntry> strips = grey_entries(1000, 100, 1, kDataAt, 100);
  strips[5] = {273, 4, 100, kDataAt}, strips[7].value = 1, strips[8] = {279, 4, 100, kDataAt + 400};
  std::string shared;
  for (int i = 0; i < 100; ++i) shared += le(kDataAt + 800, 4);
  for (int i = 0; i < 100; ++i) shared += le(1000, 4);
  EXPECT_EQ(image_error(raw_tiff(strips, shared + std::string(99'500, 'x'))), "no error");
  EXPECT_THAT(image_error(raw_tiff(strips, shared + std::string(1000, 'x'))), HasSubstr("too short"));
  strips[3].value = 32773;
  EXPECT_THAT(image_error(raw_tiff(strips, shared + std::string(10'000, 'x'))),
              HasSubstr("its strips or tiles overlap"));
  // Values of tags that are as large as the file, again and again.
  std::vector<TestEntry> tags = grey_entries(2, 2, 1, kDataAt, 4);
  for (int i = 0; i < 100; ++i) tags.push_back({40'000 + i, 7, 1000, 100});
  EXPECT_THAT(image_error(raw_tiff(tags, std::string(1000, 'x'))), HasSubstr("larger than the file"));
}

TEST(Tiff, TilesAreBounded) {
  const auto tiled = [](uint32_t width, uint32_t height, uint32_t tile_width, uint32_t tile_height) {
    std::vector<TestEntry> entries = grey_entries(width, height, 5, kDataAt, 100);
    std::erase_if(entries, [](const TestEntry& e) { return e.tag == 273 || e.tag >= 278; });
    entries.insert(entries.end(),
                   {{322, 4, 1, tile_width}, {323, 4, 1, tile_height}, {324, 4, 1, 8}, {325, 4, 1, 100}});
    return image_error(raw_tiff(entries, std::string(60'000, 'x')), {.max_pixels = 64'000'000});
  };
  EXPECT_THAT(tiled(10, 10, 100'000, 100'000), HasSubstr("tiles of 100000 x 100000 pixels are too large"));
  EXPECT_THAT(tiled(1, 200'000, 100'000, 16), HasSubstr("are too large"));
  EXPECT_THAT(tiled(2000, 2000, 1, 1), ::testing::AnyOf(HasSubstr("the limit is"), HasSubstr("cannot be read")));
  EXPECT_THAT(tiled(10, 10, 0, 16), StartsWith("t.tif: TIFF: "));
}

TEST(Tiff, WhatIsNotReadIsNamed) {
  std::vector<TestEntry> entries = grey_entries(2, 2, 1, kDataAt, 4);
  const auto changed = [&](int tag, uint32_t value) {
    std::vector<TestEntry> other = entries;
    for (TestEntry& e : other) e.value = e.tag == tag ? value : e.value;
    return image_error(raw_tiff(other, "abcd"));
  };
  for (const uint32_t compression : {6, 34661, 34712, 34925, 50000, 50001}) {
    EXPECT_EQ(changed(259, compression),
              "t.tif: TIFF: compression " + std::to_string(compression) +
                  "; expected none, PackBits, LZW, Deflate, CCITT or JPEG (tiffcp -c lzw IN OUT)");
  }
  EXPECT_THAT(changed(258, 32), HasSubstr("samples of 32 bits; expected 1 to 16"));
  EXPECT_THAT(changed(262, 8), HasSubstr("photometric interpretation 8; expected grey"));
  EXPECT_THAT(changed(277, 9), HasSubstr("9 samples a pixel"));
  EXPECT_THAT(changed(262, 2), HasSubstr("samples a pixel; expected 3 to 8"));
  entries.push_back({339, 3, 1, 3});
  EXPECT_THAT(changed(258, 32), HasSubstr("floating-point samples"));
}

TEST(Tiff, TruncatedAndDamagedFilesAreErrorsOfOneLine) {
  std::vector<std::string> files;
  for (const int compression : {COMPRESSION_NONE, COMPRESSION_LZW, COMPRESSION_ADOBE_DEFLATE, COMPRESSION_JPEG}) {
    files.push_back(make_tiff({page_of({.compression = compression, .rows = 16}), grey_page(3)}));
  }
  files.push_back(make_tiff({page_of({.mode = "wb8", .compression = COMPRESSION_PACKBITS, .tile = 16})}));
  files.push_back(
      make_tiff({page_of({.compression = COMPRESSION_CCITTFAX4, .photometric = 0, .bits = 1, .samples = 1})}));
  int n_errors = 0, n_decoded = 0;
  for (const std::string& whole : files) {
    for (size_t size = 0; size < whole.size(); size += 1 + size / 8) {
      const std::string cut = whole.substr(0, size);
      const std::string said = error_of([&] { levels_of(cut); });
      EXPECT_NE(said, "no error") << size << " of " << whole.size();
      EXPECT_EQ(said.find('\n'), std::string::npos);
    }
    uint32_t random = 3;
    for (int round = 0; round < 150; ++round) {
      std::string bytes = whole;
      for (int flips = 0; flips <= round % 3; ++flips) {
        random = random * 1664525 + 1013904223;
        bytes[(random >> 8) % bytes.size()] = static_cast<char>(random >> 3);
      }
      image_error(bytes, {.max_pixels = 1 << 16}) == "no error" ? ++n_decoded : ++n_errors;
    }
  }
  EXPECT_GT(n_errors, 100);
  EXPECT_GT(n_decoded, 100);
}

TEST(Tiff, ALargeEvenPageCostsItsPixelsAlone) {
  TiffTestPage page = grey_page(200, 1000, 500);
  page.form.compression = COMPRESSION_LZW;
  page.form.rows = 500;
  const std::string tiff = make_tiff({page});
  EXPECT_LT(tiff.size(), 500'000U / 100);
  const Image image = decode_image(tiff_bytes(tiff), "test");
  EXPECT_EQ(image.rgb, std::vector<uint8_t>(1'500'000, 200));
}

TEST(EncodePage, IsDecodedToTheSamePixels) {
  Image image(19, 7);  // black and white, then grey, then coloured
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = i / 3 % 3 == 0 ? 255 : 0;
  const size_t bilevel = encode_page(image).size();
  for (const uint8_t value : {0, 7, 9}) {
    image.rgb[0] = image.rgb[1] = value;
    image.rgb[2] = value == 9 ? 90 : value;
    EXPECT_EQ(decode_image(encode_page(image), "test").rgb, image.rgb);
  }
  EXPECT_LT(bilevel, encode_page(image).size());
}

}  // namespace
}  // namespace vlcache
