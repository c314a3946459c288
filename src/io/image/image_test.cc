// Decoders against Pillow's results (of 16 bits a sample: against its results for their high bytes), and against files
// that are damaged or claim too much.
#include "io/image/image.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/image/orientation.h"
#include "io/image/pattern_testing.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

const std::filesystem::path kImageFixtures = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/images";

std::vector<std::byte> to_bytes(std::string_view text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> read_bytes(const std::string& name) {
  return to_bytes(read_text_file(kImageFixtures / "files" / name));
}

void set_u32(std::vector<std::byte>* bytes, size_t at, uint32_t value, bool big_endian) {
  for (size_t i = 0; i < 4; ++i) (*bytes)[at + i] = static_cast<std::byte>(value >> 8 * (big_endian ? 3 - i : i));
}

// The error of decoding; none if it succeeds.
std::optional<ErrorCode> decode_error(std::span<const std::byte> bytes, const ImageLimits& limits = {}) {
  try {
    decode_image(bytes, "test", limits);
  } catch (const Error& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("test: ")) << error.what();
    return error.code();
  }
  return std::nullopt;
}

void for_each_fixture(const std::function<void(const std::string& name, const Json& expected)>& check) {
  const Json rows = load_json(kImageFixtures / "decode.json");
  ASSERT_GT(rows.size(), 100u);
  for (const Json& row : rows) check(row["file"].get<std::string>(), row);
}

TEST(Image, DecodesEveryKindOfFile) {
  for_each_fixture([](const std::string& name, const Json& expected) {
    SCOPED_TRACE(name);
    const Image image = load_image(kImageFixtures / "files" / name);
    EXPECT_EQ(image.width, expected["width"].get<int64_t>());
    EXPECT_EQ(image.height, expected["height"].get<int64_t>());
    EXPECT_EQ(sha256_hex(image.rgb.data(), image.rgb.size()), expected["sha256"].get<std::string>());
  });
}

TEST(Image, TruncatedFilesAreErrorsUnlessAllPixelsWereThere) {
  int n_errors = 0;
  for_each_fixture([&](const std::string& name, const Json& expected) {
    SCOPED_TRACE(name);
    const std::vector<std::byte> whole = read_bytes(name);
    for (size_t size = 0; size < whole.size(); size += 1 + size / 16) {
      try {
        const Image image = decode_image(std::span(whole).first(size), "test");
        // Only data after the pixels may be missing without harm: padding, an end marker, orientation.
        if (name.find("exif") == std::string::npos && name.find("xmp") == std::string::npos) {
          EXPECT_EQ(sha256_hex(image.rgb.data(), image.rgb.size()), expected["sha256"].get<std::string>()) << size;
        }
        EXPECT_GT(size, whole.size() / 4);
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::kMemory) << error.what();
        ++n_errors;
      }
    }
  });
  EXPECT_GT(n_errors, 5000);
}

TEST(Image, FlippedBytesNeverCrash) {
  const ImageLimits limits{.max_pixels = 1 << 16};
  int n_decoded = 0, n_errors = 0;
  for_each_fixture([&](const std::string& name, const Json&) {
    const std::vector<std::byte> whole = read_bytes(name);
    uint32_t random = 12345;
    for (int round = 0; round < 60; ++round) {
      std::vector<std::byte> bytes = whole;
      for (int flips = 0; flips <= round % 3; ++flips) {
        random = random * 1664525 + 1013904223;
        // Half of the damage goes to the first 64 bytes, where the headers are.
        const size_t range = round % 2 == 0 ? std::min<size_t>(bytes.size(), 64) : bytes.size();
        bytes[(random >> 8) % range] = static_cast<std::byte>(random >> 3);
      }
      decode_error(bytes, limits) ? ++n_errors : ++n_decoded;
    }
  });
  EXPECT_GT(n_decoded, 100);
  EXPECT_GT(n_errors, 100);
}

TEST(Image, RejectsDataThatIsNotAnImage) {
  EXPECT_EQ(decode_error({}), ErrorCode::kInput);
  EXPECT_EQ(decode_error(to_bytes("%PDF-1.4 and so on")), ErrorCode::kUnsupported);
  EXPECT_EQ(decode_error(to_bytes("II*")), ErrorCode::kUnsupported);
  EXPECT_EQ(decode_error(to_bytes(std::string_view("II*\0 a TIFF", 11))), ErrorCode::kInput);
  EXPECT_EQ(decode_error(to_bytes("B")), ErrorCode::kUnsupported);
  EXPECT_EQ(decode_error(to_bytes("BM")), ErrorCode::kInput);
  EXPECT_EQ(decode_error(to_bytes("RIFF....WEBPVP8 ")), ErrorCode::kInput);
  EXPECT_EQ(decode_error(to_bytes("\xff\xd8\xff")), ErrorCode::kInput);
  EXPECT_EQ(decode_error(to_bytes("GIF89a")), ErrorCode::kInput);
  EXPECT_EQ(decode_error(to_bytes("\x89PNG\r\n\x1a\n")), ErrorCode::kInput);
}

TEST(Image, AJpegOf12BitsIsRefusedInWords) {
  std::vector<std::byte> jpeg = read_bytes("size8x8.jpg");
  for (size_t i = 0; i + 4 < jpeg.size(); ++i) {
    if (jpeg[i] == std::byte{0xff} && jpeg[i + 1] == std::byte{0xc0}) jpeg[i + 4] = std::byte{12};
  }
  EXPECT_EQ(error_of([&] { decode_image(jpeg, "test"); }),
            "test: JPEG: samples of 12 bits; expected 8; save it with 8 bits a sample");
}

TEST(Image, TellsMediaTypes) {
  const auto type_of = [](std::string_view bytes) { return media_type(to_bytes(bytes)); };
  EXPECT_EQ(type_of("\xff\xd8\xff"), "image/jpeg");
  EXPECT_EQ(type_of("\x89PNG\r\n\x1a\n"), "image/png");
  EXPECT_EQ(type_of("RIFF....WEBPVP8 "), "image/webp");
  EXPECT_EQ(type_of("GIF87a"), "image/gif");
  EXPECT_EQ(type_of("BM"), "image/bmp");
  EXPECT_EQ(type_of("RIFF....WAVE"), "");
  EXPECT_EQ(type_of(""), "");
}

TEST(Image, ReportsUnreadableFiles) {
  const auto code_of = [](const std::filesystem::path& path, const ImageLimits& limits = {}) {
    try {
      load_image(path, limits);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
      return error.code();
    }
    return ErrorCode::kCancelled;
  };
  EXPECT_EQ(code_of(kImageFixtures / "files/none.png"), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(kImageFixtures / "files"), ErrorCode::kIo);
  EXPECT_EQ(code_of(kImageFixtures / "files/bits24.bmp", {.max_bytes = 100}), ErrorCode::kMemory);
}

TEST(Image, LimitsPixelsBeforeAllocatingThem) {
  // The sizes in the headers become large; the files stay small.
  std::vector<std::byte> bmp = read_bytes("bits24.bmp");
  set_u32(&bmp, 18, 100000, false), set_u32(&bmp, 22, 100000, false);
  EXPECT_EQ(decode_error(bmp), ErrorCode::kMemory);
  set_u32(&bmp, 18, 10000, false), set_u32(&bmp, 22, 10000, false);
  EXPECT_EQ(decode_error(bmp), ErrorCode::kInput);  // within the limit, but the file is too short for it
  set_u32(&bmp, 18, 0, false);
  EXPECT_EQ(decode_error(bmp), ErrorCode::kInput);
  set_u32(&bmp, 18, 0x80000000u, false);
  EXPECT_EQ(decode_error(bmp), ErrorCode::kInput);

  std::vector<std::byte> jpeg = read_bytes("size8x8.jpg");
  for (size_t i = 0; i + 9 < jpeg.size(); ++i) {
    if (jpeg[i] == std::byte{0xff} && jpeg[i + 1] == std::byte{0xc0})
      set_u32(&jpeg, i + 5, 0xfde8fde8u, true);  // 65000 x 65000
  }
  EXPECT_EQ(decode_error(jpeg), ErrorCode::kMemory);

  std::vector<std::byte> gif = read_bytes("plain.gif");
  set_u32(&gif, 6, 0xffffffffu, false);
  EXPECT_EQ(decode_error(gif), ErrorCode::kMemory);

  for (const std::string name :
       {"size8x8.jpg", "bits24.bmp", "colour2_8.png", "lossless.webp", "alpha.webp", "plain.gif"}) {
    EXPECT_EQ(decode_error(read_bytes(name), {.max_pixels = 63}), ErrorCode::kMemory) << name;
    EXPECT_EQ(decode_error(read_bytes(name), {.max_side = 7}), ErrorCode::kMemory) << name;
    EXPECT_EQ(decode_error(read_bytes(name), {.max_bytes = 99}), ErrorCode::kMemory) << name;
    EXPECT_EQ(decode_error(read_bytes(name)), std::nullopt) << name;
  }
}

// A progressive JPEG with its last scan repeated, so that it has n scans.
std::vector<std::byte> with_scans(const std::string& file, size_t n) {
  const std::vector<std::byte> bytes = read_bytes(file);
  std::vector<size_t> begins;
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    if (bytes[i] == std::byte{0xff} && bytes[i + 1] == std::byte{0xda}) begins.push_back(i);
  }
  EXPECT_LE(begins.size(), n);
  std::vector<std::byte> out(bytes.begin(), bytes.end() - 2);
  const auto last = bytes.begin() + static_cast<std::ptrdiff_t>(begins.back());
  for (size_t i = begins.size(); i < n; ++i) out.insert(out.end(), last, bytes.end() - 2);
  out.insert(out.end(), bytes.end() - 2, bytes.end());
  return out;
}

TEST(Image, ScansOfAJpegAreLimitedByItsPixels) {
  for (const std::string file : {"progressive0.jpg", "progressive1.jpg", "progressive2.jpg"}) {
    const Image plain = decode_image(read_bytes(file), "test");
    const int64_t n = plain.width * plain.height;
    const auto decoded = [&](size_t n_scans, int64_t max_pixels) {
      return decode_error(with_scans(file, n_scans), {.max_pixels = max_pixels});
    };
    EXPECT_EQ(decoded(32, n), std::nullopt);
    EXPECT_EQ(decoded(33, n), ErrorCode::kMemory);
    EXPECT_EQ(decoded(96, 3 * n), std::nullopt);
    EXPECT_EQ(decoded(97, 3 * n), ErrorCode::kMemory);
    EXPECT_EQ(decoded(500, 1000 * n), std::nullopt);
    EXPECT_EQ(decoded(501, 1000 * n), ErrorCode::kMemory);
    EXPECT_EQ(decoded(3200, n), ErrorCode::kMemory);
  }
}

// A PNG with `n` compressed text chunks of `length` bytes of text each.
std::vector<std::byte> with_texts(const std::string& file, int n, size_t length) {
  std::string chunk("....zTXtComment\0\0", 17);
  std::vector<Bytef> packed(compressBound(length));
  uLongf packed_bytes = packed.size();
  const std::vector<Bytef> text(length, 'x');
  EXPECT_EQ(compress2(packed.data(), &packed_bytes, text.data(), text.size(), 9), Z_OK);
  chunk.append(reinterpret_cast<const char*>(packed.data()), packed_bytes);
  std::vector<std::byte> all = to_bytes(chunk), bytes = read_bytes(file);
  set_u32(&all, 0, static_cast<uint32_t>(all.size() - 8), true);
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(all.data()) + 4, static_cast<uInt>(all.size() - 4));
  all.resize(all.size() + 4);
  set_u32(&all, all.size() - 4, static_cast<uint32_t>(crc), true);
  for (int i = 0; i < n; ++i) bytes.insert(bytes.begin() + 33, all.begin(), all.end());  // after IHDR
  return bytes;
}

int64_t peak_kilobytes() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Image, TextOfAPngIsLimited) {
  const Image plain = decode_image(read_bytes("colour2_8.png"), "test");
  const std::vector<std::byte> bytes = with_texts("colour2_8.png", 200, 7'900'000);  // 1.5 GB of text
  ASSERT_LT(bytes.size(), size_t{4} << 20);
  const int64_t before = peak_kilobytes();
  EXPECT_EQ(decode_image(bytes, "test").rgb, plain.rgb);
  EXPECT_EQ(decode_image(with_texts("colour2_8.png", 200, 1'000'000), "test").rgb, plain.rgb);  // many short ones
  EXPECT_LT(peak_kilobytes() - before, 400 << 10);
}

TEST(Image, GreyPaletteOfAGifFrameIsUsedUnlikeInPillow) {
  // Pillow 13 takes a frame's own palette of plain greys for none and applies the file's palette instead.
  std::vector<std::byte> gif = read_bytes("local.gif");
  const size_t local = 13 + 768 + 10;
  for (size_t i = 0; i < 768; ++i) gif[local + i] = static_cast<std::byte>(i / 3);
  EXPECT_EQ(decode_image(gif, "test").rgb, decode_image(read_bytes("grey.gif"), "test").rgb);
}

TEST(Image, FindsOrientationInDamagedMetadataOrNone) {
  const auto exif = [](std::string_view text) {
    return exif_orientation({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  const std::string good("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0", 22);
  EXPECT_EQ(exif(good), 6);
  for (size_t n = 0; n < good.size(); ++n) EXPECT_EQ(exif(good.substr(0, n)), 0);
  std::string far = good;
  far.replace(4, 4, "\xff\xff\xff\xff");  // the directory lies outside
  EXPECT_EQ(exif(far), 0);
  far = good;
  far.replace(14, 8, "\xff\xff\xff\x7f\xf0\xff\xff\xff");  // 2^31 values, outside
  EXPECT_EQ(exif(far), 0);
  EXPECT_EQ(xmp_orientation("tiff:Orientation"), 0);
  EXPECT_EQ(xmp_orientation("tiff:Orientation=\""), 0);
  EXPECT_EQ(xmp_orientation("tiff:Orientation='6' tiff:Orientation=\"7\""), 7);
}

}  // namespace
}  // namespace vlcache
