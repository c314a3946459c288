#include "io/image/orientation.h"

#include <cstring>
#include <utility>

namespace vlcache {
namespace {

constexpr uint16_t kOrientationTag = 0x0112;
enum TiffType : uint16_t { kShort = 3, kLong = 4, kSignedShort = 8, kSignedLong = 9 };

struct TiffReader {
  std::span<const uint8_t> bytes;
  bool big_endian;

  bool has(size_t at, size_t n) const { return at <= bytes.size() && n <= bytes.size() - at; }
  uint32_t u16(size_t at) const {
    const uint32_t a = bytes[at], b = bytes[at + 1];
    return big_endian ? a << 8 | b : b << 8 | a;
  }
  uint32_t u32(size_t at) const { return big_endian ? u16(at) << 16 | u16(at + 2) : u16(at + 2) << 16 | u16(at); }
};

// The value of one 12-byte IFD entry, if it is an integer that fits a 4-byte field or lies in the block; else -1.
int64_t entry_value(const TiffReader& tiff, size_t entry) {
  const uint32_t type = tiff.u16(entry + 2);
  const uint64_t count = tiff.u32(entry + 4);
  const bool is_short = type == kShort || type == kSignedShort;
  if ((!is_short && type != kLong && type != kSignedLong) || count == 0) return -1;
  const uint64_t size = count * (is_short ? 2 : 4);
  size_t at = entry + 8;
  if (size > 4) at = tiff.u32(entry + 8);
  if (size > tiff.bytes.size() || !tiff.has(at, static_cast<size_t>(size))) return -1;
  return is_short ? tiff.u16(at) : tiff.u32(at);
}

// Size of the image whose pixel (x, y) is source(x, y) of the old one.
template <typename Source>
Image rearranged(const Image& image, bool swap_axes, Source source) {
  Image out(swap_axes ? image.height : image.width, swap_axes ? image.width : image.height);
  for (int64_t y = 0; y < out.height; ++y) {
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < out.width; ++x, to += 3) {
      const auto [sx, sy] = source(x, y);
      std::memcpy(to, image.row(sy) + sx * 3, 3);
    }
  }
  return out;
}

}  // namespace

int exif_orientation(std::span<const uint8_t> exif) {
  for (int i = 0; i < 2 && exif.size() >= 6 && std::memcmp(exif.data(), "Exif\0\0", 6) == 0; ++i)
    exif = exif.subspan(6);
  if (exif.size() < 8) return 0;
  const bool little = std::memcmp(exif.data(), "II*\0", 4) == 0;
  if (!little && std::memcmp(exif.data(), "MM\0*", 4) != 0) return 0;
  const TiffReader tiff{exif, !little};
  const size_t ifd = tiff.u32(4);
  if (!tiff.has(ifd, 2)) return 0;
  const uint32_t n = tiff.u16(ifd);
  int orientation = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const size_t entry = ifd + 2 + 12 * size_t{i};
    if (!tiff.has(entry, 12)) break;
    if (tiff.u16(entry) != kOrientationTag) continue;
    const int64_t value = entry_value(tiff, entry);
    if (value >= 1 && value <= 8) orientation = static_cast<int>(value);
  }
  return orientation;
}

int xmp_orientation(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at + 1)) {
    std::string_view rest = xmp.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] >= '1' && rest[0] <= '8' ? rest[0] - '0' : 0;
  }
  return 0;
}

int choose_orientation(std::span<const uint8_t> exif, std::string_view xmp) {
  int orientation = exif_orientation(exif);
  if (orientation == 0) orientation = xmp_orientation(xmp);
  return orientation == 0 ? 1 : orientation;
}

Image apply_orientation(Image image, int orientation) {
  using At = std::pair<int64_t, int64_t>;
  const int64_t right = image.width - 1, bottom = image.height - 1;
  switch (orientation) {
    case 2:
      return rearranged(image, false, [=](int64_t x, int64_t y) { return At(right - x, y); });
    case 3:
      return rearranged(image, false, [=](int64_t x, int64_t y) { return At(right - x, bottom - y); });
    case 4:
      return rearranged(image, false, [=](int64_t x, int64_t y) { return At(x, bottom - y); });
    case 5:
      return rearranged(image, true, [](int64_t x, int64_t y) { return At(y, x); });
    case 6:
      return rearranged(image, true, [=](int64_t x, int64_t y) { return At(y, bottom - x); });
    case 7:
      return rearranged(image, true, [=](int64_t x, int64_t y) { return At(right - y, bottom - x); });
    case 8:
      return rearranged(image, true, [=](int64_t x, int64_t y) { return At(right - y, x); });
    default:
      return image;
  }
}

}  // namespace vlcache
