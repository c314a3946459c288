#include "store/record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian; nothing here swaps bytes");

// Line ends and a byte above 127: a transfer in text mode is detected at once (as in PNG).
constexpr std::array<char, 8> kMagic = {'\x89', 'V', 'L', 'R', '\r', '\n', '\x1a', '\n'};
constexpr size_t kFixedBytes = 96;
constexpr size_t kSectionBytes = 24;
constexpr size_t kSumBytes = sizeof(Checksum);

size_t padded(size_t layout_bytes) { return (layout_bytes + 7) / 8 * 8; }
size_t bytes_of_header(size_t layout_bytes, size_t n_sections) {
  return kFixedBytes + padded(layout_bytes) + kSectionBytes * n_sections + kSumBytes;
}

// The fixed part, as laid out in the file.
struct Fixed {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  uint8_t kind;
  uint8_t saving;
  uint16_t layout_bytes;
  uint32_t n_sections;
  int64_t created_ms;
  ModelFingerprint model;
  Sha256Digest content;
  Checksum tenant;
};
static_assert(sizeof(Fixed) == kFixedBytes && offsetof(Fixed, model) == 32 && offsetof(Fixed, tenant) == 80);
static_assert(offsetof(Fixed, model) + sizeof(ModelFingerprint) == kPeekBytes);

struct StoredSection {
  uint64_t bytes;
  Checksum sum;
};
static_assert(sizeof(StoredSection) == kSectionBytes);

template <typename T>
T take(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <typename T>
void put(std::vector<std::byte>& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

Miss miss(MissReason reason, std::string detail) { return {reason, std::move(detail)}; }

// Ten steps an octave, from 1 ms; 0: unknown.
constexpr double kSavingSteps = 10;
uint8_t encode_saving(double ms) {
  if (!(ms > 0)) return 0;
  return static_cast<uint8_t>(1 + std::lround(std::min(kSavingSteps * std::log2(1 + ms), 254.0)));
}
double decode_saving(uint8_t saving) { return saving == 0 ? 0 : std::exp2((saving - 1) / kSavingSteps) - 1; }

// The sizes agree with each other and keep the limits.
bool sane(const Fixed& fixed) {
  return fixed.layout_bytes <= kMaxLayoutBytes && fixed.n_sections <= kMaxSections &&
         fixed.header_bytes == bytes_of_header(fixed.layout_bytes, fixed.n_sections);
}

std::optional<Miss> check_sizes(std::span<const std::byte> first, Fixed& fixed) {
  if (first.size() < kFixedBytes)
    return miss(MissReason::kTruncated, format("%zu bytes, a header has more", first.size()));
  fixed = take<Fixed>(first, 0);
  if (fixed.magic != kMagic) return miss(MissReason::kMalformed, "not a record");
  if (fixed.version != kRecordVersion)
    return miss(MissReason::kOtherVersion, format("version %u, expected %u", fixed.version, kRecordVersion));
  if (!sane(fixed)) return miss(MissReason::kMalformed, "the sizes in its header do not agree");
  if (first.size() < fixed.header_bytes)
    return miss(MissReason::kTruncated, format("%zu bytes of a header of %u", first.size(), fixed.header_bytes));
  return std::nullopt;
}

std::optional<Miss> check_sums(const RecordSeal& seal, std::span<const std::byte> first, const Fixed& fixed) {
  if (!equal(fixed.tenant, seal.tenant()))
    return miss(MissReason::kOtherTenant, seal.salted() ? "not stored under this salt" : "stored under a salt");
  const size_t n = fixed.header_bytes - kSumBytes;
  if (!equal(take<Checksum>(first, n), seal.header(first.first(n)))) return miss(MissReason::kChecksum, "header");
  return std::nullopt;
}

std::optional<Miss> take_sections(std::span<const std::byte> first, const Fixed& fixed, int64_t record_bytes,
                                  std::vector<SectionInfo>& sections) {
  size_t at = kFixedBytes + padded(fixed.layout_bytes);
  const bool known = record_bytes != kUnknownBytes;
  if (!known) record_bytes = kMaxRecordBytes;
  int64_t left = record_bytes - fixed.header_bytes;
  sections.resize(fixed.n_sections);
  for (SectionInfo& section : sections) {
    const auto stored = take<StoredSection>(first, at);
    at += kSectionBytes;
    if (left < 0 || stored.bytes > static_cast<uint64_t>(left))
      return miss(MissReason::kTruncated, format("%lld bytes, its sections have more", (long long)record_bytes));
    section = {static_cast<int64_t>(stored.bytes), stored.sum};
    left -= section.bytes;
  }
  if (left == 0 || !known) return std::nullopt;
  return miss(MissReason::kTruncated,
              format("%lld bytes, %lld after its sections", (long long)record_bytes, (long long)left));
}

std::optional<Miss> check_key(const RecordKey& found, const RecordKey& expected) {
  if (found.kind != expected.kind)
    return miss(MissReason::kOtherKind, std::string(record_kind_name(found.kind)) + ", expected " +
                                            std::string(record_kind_name(expected.kind)));
  if (found.model != expected.model) return miss(MissReason::kOtherModel, "");
  if (found.layout != expected.layout)
    return miss(MissReason::kOtherLayout, found.layout + ", expected " + expected.layout);
  if (found.content != expected.content) return miss(MissReason::kOtherKey, "other contents");
  return std::nullopt;
}

}  // namespace

int64_t RecordHeader::bytes() const {
  return static_cast<int64_t>(bytes_of_header(key.layout.size(), sections.size()));
}

int64_t RecordHeader::section_offset(size_t section) const {
  int64_t at = bytes();
  for (size_t i = 0; i < section; ++i) at += sections[i].bytes;
  return at;
}

int64_t Record::bytes() const {
  int64_t n = 0;
  for (const auto& section : sections) n += static_cast<int64_t>(section.size());
  return n;
}

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

RecordHeader make_header(const RecordSeal& seal, const Record& record) {
  RecordHeader header{record.key, record.created_ms != 0 ? record.created_ms : now_ms(), record.saves_ms, {}};
  const RecordId id = seal.id(record.key);
  for (const auto& section : record.sections) {
    const auto bytes = static_cast<int64_t>(section.size());
    ChecksumStream sum = seal.section(id, std::ssize(header.sections), bytes);
    sum.add(section);
    header.sections.push_back({bytes, sum.finish()});
  }
  return header;
}

std::vector<std::byte> encode_header(const RecordSeal& seal, const RecordHeader& header) {
  const RecordKey& key = header.key;
  CHECK(valid(key) && header.sections.size() <= kMaxSections);
  std::vector<std::byte> bytes(static_cast<size_t>(header.bytes()));
  const Fixed fixed{.magic = kMagic,
                    .version = kRecordVersion,
                    .header_bytes = static_cast<uint32_t>(bytes.size()),
                    .kind = static_cast<uint8_t>(key.kind),
                    .saving = encode_saving(header.saves_ms),
                    .layout_bytes = static_cast<uint16_t>(key.layout.size()),
                    .n_sections = static_cast<uint32_t>(header.sections.size()),
                    .created_ms = header.created_ms,
                    .model = key.model,
                    .content = key.content,
                    .tenant = seal.tenant()};
  put(bytes, 0, fixed);
  std::ranges::copy(std::as_bytes(std::span(key.layout)), bytes.begin() + kFixedBytes);
  size_t at = kFixedBytes + padded(key.layout.size());
  for (const SectionInfo& section : header.sections) {
    put(bytes, at, StoredSection{static_cast<uint64_t>(section.bytes), section.sum});
    at += kSectionBytes;
  }
  put(bytes, at, seal.header(std::span(bytes).first(at)));
  return bytes;
}

int64_t header_bytes(std::span<const std::byte> first) {
  if (first.size() < 16 || take<std::array<char, 8>>(first, 0) != kMagic) return 0;
  const auto n = take<uint32_t>(first, offsetof(Fixed, header_bytes));
  return n <= kMaxHeaderBytes ? int64_t{n} : 0;
}

std::optional<Miss> parse_header(const RecordSeal& seal, std::span<const std::byte> first, int64_t record_bytes,
                                 const RecordKey* expected, RecordHeader& header) {
  Fixed fixed;
  if (auto why = check_sizes(first, fixed)) return why;
  if (auto why = check_sums(seal, first, fixed)) return why;
  header.key = {static_cast<RecordKind>(fixed.kind), fixed.model, fixed.content, ""};
  header.key.layout.assign(reinterpret_cast<const char*>(first.data()) + kFixedBytes, fixed.layout_bytes);
  header.created_ms = fixed.created_ms;
  header.saves_ms = decode_saving(fixed.saving);
  if (!valid(header.key)) return miss(MissReason::kMalformed, "a malformed key");
  if (auto why = take_sections(first, fixed, record_bytes, header.sections)) return why;
  if (expected != nullptr) return check_key(header.key, *expected);
  return std::nullopt;
}

bool has_expired(int64_t created_ms, int64_t ttl_ms) {
  const int64_t now = now_ms();
  return ttl_ms > 0 && (created_ms <= now - ttl_ms || created_ms >= now + ttl_ms);
}

std::optional<Miss> check_age(const RecordHeader& header, int64_t ttl_ms) {
  if (!has_expired(header.created_ms, ttl_ms)) return std::nullopt;
  const int64_t now = now_ms();
  if (header.created_ms < 0 || header.created_ms > now)
    return miss(MissReason::kExpired, "its time is not in the past");
  return miss(MissReason::kExpired, std::to_string((now - header.created_ms) / 1000) + " s old");
}

std::optional<Miss> check_target(const RecordHeader& header, int32_t section, std::span<const std::byte> to) {
  const auto i = static_cast<size_t>(section);
  if (section < 0 || i >= header.sections.size()) return miss(MissReason::kOtherLayout, "it has no such section");
  const int64_t bytes = header.sections[i].bytes;
  if (std::ssize(to) == bytes) return std::nullopt;
  return miss(MissReason::kOtherLayout, std::to_string(bytes) + " bytes, expected " + std::to_string(to.size()));
}

std::optional<RecordPeek> peek(std::span<const std::byte> first) {
  if (first.size() < kPeekBytes || take<std::array<char, 8>>(first, 0) != kMagic ||
      take<uint32_t>(first, offsetof(Fixed, version)) != kRecordVersion) {
    return std::nullopt;
  }
  return RecordPeek{take<ModelFingerprint>(first, offsetof(Fixed, model)),
                    take<int64_t>(first, offsetof(Fixed, created_ms)),
                    decode_saving(take<uint8_t>(first, offsetof(Fixed, saving)))};
}

}  // namespace vlcache
