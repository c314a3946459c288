#include "io/image/tiff_directory.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "io/image/tiff.h"

namespace vlcache {
namespace {

constexpr size_t kMaxDirectories = 65'536;
constexpr uint64_t kMaxEntries = 1024;  // libtiff compares each with each; real directories have some 20

enum TiffTag : uint32_t { kSubfileType = 254, kOldSubfileType = 255, kCompression = 259 };
constexpr uint32_t kReducedOrMask = 1 | 4;  // bits of kSubfileType
constexpr uint32_t kOldReduced = 2;         // a value of kOldSubfileType

enum TiffValue : uint32_t { kByteValue = 1, kShortValue = 3, kLongValue = 4 };

constexpr TiffCompression kCompressions[] = {
    {1, 1},                                             // none
    {2, 0},       {3, 0},         {4, 0}, {32'771, 0},  // CCITT: a bit may be a row
    {5, 4096},                                          // LZW: a code is a string of that length at most
    {7, 0},                                             // JPEG
    {8, 1032},    {32'946, 1032},                       // Deflate
    {32'773, 64},                                       // PackBits: two bytes make 128
};

// One directory: where it lies, its entries and the next one. Classic TIFF counts entries in 2 bytes and has offsets of
// 4, BigTIFF has 8 bytes for each.
class DirectoryReader {
 public:
  explicit DirectoryReader(const DecodeInput& in)
      : in_(in), big_endian_(in.bytes[0] == 'M'), is_big_tiff_(in.bytes[big_endian_ ? 3 : 2] == 43) {}

  uint64_t first_directory() const {
    if (!has(0, is_big_tiff_ ? 16 : 8)) fail("the file is truncated");
    return is_big_tiff_ ? u64(8) : u32(4);
  }

  // Throws Error unless it lies within the file.
  uint64_t n_entries(uint64_t directory) const {
    const uint64_t n_bytes = is_big_tiff_ ? 8 : 2;
    if (!has(directory, n_bytes)) fail_outside(directory);
    const uint64_t n = is_big_tiff_ ? u64(directory) : u16(directory);
    if (n == 0 || n > kMaxEntries) {
      fail("a directory of " + std::to_string(n) + " entries; expected 1 to " + std::to_string(kMaxEntries));
    }
    if (!has(directory + n_bytes, n * entry_bytes() + offset_bytes())) fail_outside(directory);
    return n;
  }

  uint64_t next_directory(uint64_t directory, uint64_t n) const { return offset_at(entry(directory, n)); }

  // Whether it is a page, and no smaller copy or mask of one. Entries are sorted by tags, and these two are the
  // smallest.
  bool is_page(uint64_t directory, uint64_t n) const {
    for (uint64_t i = 0; i < std::min<uint64_t>(n, 4); ++i) {
      const uint64_t at = entry(directory, i), value = at + (is_big_tiff_ ? 12 : 8);
      const uint32_t tag = u16(at), number = u16(at + 2) == kShortValue ? u16(value) : u32(value);
      if (tag == kSubfileType && (number & kReducedOrMask) != 0) return false;
      if (tag == kOldSubfileType && number == kOldReduced) return false;
    }
    return true;
  }

  // Bytes of all values of the entries, at most 2^62.
  uint64_t value_bytes(uint64_t directory, uint64_t n) const {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    constexpr uint64_t kTypeBytes[] = {1, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 1, 1, 8, 8, 8};
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = entry(directory, i), type = u16(at + 2);
      const uint64_t count = is_big_tiff_ ? u64(at + 4) : u32(at + 4);
      const uint64_t size = type < std::size(kTypeBytes) ? kTypeBytes[type] : 1;
      sum = std::min(kMost, sum + std::min(kMost / 8, count) * size);
    }
    return sum;
  }

  // Throws Error for a compression that is none of kCompressions.
  void check_compressions(uint64_t directory, uint64_t n) const {
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = entry(directory, i);
      if (u16(at) != kCompression) continue;
      const uint64_t type = u16(at + 2), count = is_big_tiff_ ? u64(at + 4) : u32(at + 4);
      const uint64_t size = type == kLongValue ? 4 : type == kShortValue ? 2 : 1;
      uint64_t value = at + (is_big_tiff_ ? 12 : 8);
      if (count > offset_bytes() / size) value = offset_at(value);  // one for each sample
      if ((size == 1 && type != kByteValue) || count == 0 || !has(value, size)) fail("its compression is damaged");
      if (const uint64_t found = number(value, static_cast<int>(size));
          find_tiff_compression(static_cast<uint32_t>(found)) == nullptr) {
        fail_image(in_, "TIFF",
                   "compression " + std::to_string(found) +
                       "; expected none, PackBits, LZW, Deflate, CCITT or JPEG (tiffcp -c lzw IN OUT)",
                   ErrorCode::kUnsupported);
      }
    }
  }

  [[noreturn]] void fail(const std::string& what) const { fail_image(in_, "TIFF", what); }

 private:
  [[noreturn]] void fail_outside(uint64_t directory) const {
    fail("the directory at byte " + std::to_string(directory) + " does not lie within the file's " +
         std::to_string(in_.bytes.size()) + " bytes: the file is truncated or damaged");
  }

  bool has(uint64_t at, uint64_t n) const { return at <= in_.bytes.size() && n <= in_.bytes.size() - at; }
  uint64_t entry_bytes() const { return is_big_tiff_ ? 20 : 12; }
  uint64_t offset_bytes() const { return is_big_tiff_ ? 8 : 4; }
  uint64_t entry(uint64_t directory, uint64_t i) const {
    return directory + (is_big_tiff_ ? 8 : 2) + i * entry_bytes();
  }
  uint64_t offset_at(uint64_t at) const { return is_big_tiff_ ? u64(at) : u32(at); }

  // The caller has checked the bounds.
  uint64_t number(uint64_t at, int n) const {
    uint64_t value = 0;
    for (int i = 0; i < n; ++i) {
      value = value << 8 | in_.bytes[static_cast<size_t>(at) + static_cast<size_t>(big_endian_ ? i : n - 1 - i)];
    }
    return value;
  }
  uint32_t u16(uint64_t at) const { return static_cast<uint32_t>(number(at, 2)); }
  uint32_t u32(uint64_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t u64(uint64_t at) const { return number(at, 8); }

  const DecodeInput& in_;
  const bool big_endian_, is_big_tiff_;
};

}  // namespace

bool is_tiff(std::span<const std::byte> bytes) {
  constexpr std::string_view kMagics[] = {{"II*\0", 4}, {"MM\0*", 4}, {"II+\0", 4}, {"MM\0+", 4}};
  return std::ranges::any_of(kMagics, [&](std::string_view magic) {
    return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  });
}

std::vector<uint64_t> find_tiff_pages(const DecodeInput& in) {
  if (!is_tiff(std::as_bytes(in.bytes))) fail_image(in, "TIFF", "expected a TIFF, found another kind of file");
  const DirectoryReader reader(in);
  std::vector<uint64_t> pages;
  std::unordered_set<uint64_t> seen;
  uint64_t first = 0;
  for (uint64_t at = reader.first_directory(); at != 0;) {
    if (!seen.insert(at).second) reader.fail("its directories form a loop");
    if (seen.size() > kMaxDirectories) {
      reader.fail("more than " + std::to_string(kMaxDirectories) + " directories, each a page");
    }
    if (first == 0) first = at;
    const uint64_t n = reader.n_entries(at);
    if (reader.is_page(at, n)) pages.push_back(at);
    at = reader.next_directory(at, n);
  }
  if (first == 0) reader.fail("it has no page");
  if (pages.empty()) pages.push_back(first);
  return pages;
}

const TiffCompression* find_tiff_compression(uint32_t number) {
  const auto* found = std::ranges::find(kCompressions, number, &TiffCompression::number);
  return found == std::end(kCompressions) ? nullptr : found;
}

void check_tiff_directory(const DecodeInput& in, uint64_t directory) {
  const DirectoryReader reader(in);
  const uint64_t n = reader.n_entries(directory);
  if (reader.value_bytes(directory, n) > in.bytes.size()) {
    reader.fail("the values of a directory's entries are larger than the file");
  }
  reader.check_compressions(directory, n);
}

std::vector<uint64_t> tiff_pages(std::span<const std::byte> tiff, std::string_view where) {
  const ImageLimits limits;
  return find_tiff_pages({{reinterpret_cast<const uint8_t*>(tiff.data()), tiff.size()}, where, limits});
}

}  // namespace vlcache
