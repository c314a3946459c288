// The record format: what a tier stores, with all that is needed to decide whether it may be used. A header, then the
// bytes of the sections. Section 0 is an encoder's output, section 1 + i the K and V of layer i; nothing here depends
// on that.
//
//   at      bytes          what (integers little-endian)
//   0       8              magic
//   8       4              version
//   12      4              bytes of the header, checksum included
//   16      1, 1, 2        kind; saving (RecordHeader::saves_ms, on a scale of logarithms); bytes of the layout
//   20      4              number of sections
// 24      8              creation time, ms since 1970
//   32      16             the model's fingerprint
//   48      32             digest of the contents
//   80      16             tenant (RecordSeal::tenant)
//   96      layout, filled with zeros to a multiple of 8
//           24 a section   bytes (8), checksum (16)
//           16             checksum of everything before it
//
// Every byte is covered by a checksum: a section by one in the header, the header by its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "store/miss.h"
#include "store/record_key.h"
#include "store/record_seal.h"

namespace vlcache {

class SavePace;

inline constexpr uint32_t kRecordVersion = 1;
inline constexpr size_t kMaxSections = 4096;
// The largest header, from the limits of layout and sections: 98,688 bytes.
inline constexpr int64_t kMaxHeaderBytes = 96 + int64_t{kMaxLayoutBytes} + 24 * int64_t{kMaxSections} + 16;

struct SectionInfo {
  int64_t bytes = 0;
  Checksum sum{};
  bool operator==(const SectionInfo&) const = default;
};

struct RecordHeader {
  RecordKey key;
  int64_t created_ms = 0;  // since 1970
  double saves_ms = 0;     // what a hit saves, to 4 %; 0: unknown
  std::vector<SectionInfo> sections;

  int64_t bytes() const;                         // of the header itself
  int64_t section_offset(size_t section) const;  // from the record's first byte; of n_sections: the record's size
};

// A record to be stored: views, and the owner of their memory for a caller that stores later (null if the caller
// waits).
struct Record {
  RecordKey key;
  std::vector<std::span<const std::byte>> sections;
  std::shared_ptr<const void> owner;
  int64_t created_ms = 0;          // 0: now
  const SavePace* pace = nullptr;  // called between pieces; null: as fast as the medium allows
  double saves_ms = 0;             // what a hit saves; 0: unknown
  int32_t n_uses = 0;              // so far, beyond the first
  // Used once: not stored if the tier would evict for it a record that was used again, or one that saves more for its
  // bytes; evicted before records that were used again.
  bool yields = false;
  // Stored in spite of that, though memory has it: a tier that cannot put it before others only stores it where it has
  // room, and for a limited time. Also yields.
  bool first_use = false;

  int64_t bytes() const;  // of the sections
};

int64_t now_ms();  // since 1970

// The header's bytes, checksum included. The key must be valid, sections at most kMaxSections.
std::vector<std::byte> encode_header(const RecordSeal& seal, const RecordHeader& header);
// The header of a record to be stored: reads every section once.
RecordHeader make_header(const RecordSeal& seal, const Record& record);

// The size in bytes of the header that begins like this (at least 16 bytes of it); 0 if no header does.
int64_t header_bytes(std::span<const std::byte> first);

// For a record whose sections are not stored after its header: they may have up to kMaxRecordBytes, as the header says.
inline constexpr int64_t kUnknownBytes = -1;
inline constexpr int64_t kMaxRecordBytes = int64_t{1} << 40;

// Parses the header of a record of `record_bytes`; `first` are its first bytes, at least the header's. nullopt:
// `header` is verified, and of `expected` if that is given. Allocates nothing for sizes that the bytes do not bear out.
std::optional<Miss> parse_header(const RecordSeal& seal, std::span<const std::byte> first, int64_t record_bytes,
                                 const RecordKey* expected, RecordHeader& header);

// Whether a record was written ttl_ms ago or earlier. A time as far in the future counts, too: when a clock has been
// set back, its records would otherwise never expire. ttl_ms 0: no limit.
bool has_expired(int64_t created_ms, int64_t ttl_ms);

// kExpired if the record has expired.
std::optional<Miss> check_age(const RecordHeader& header, int64_t ttl_ms);
// Whether the section exists and has as many bytes as the reader's target.
std::optional<Miss> check_target(const RecordHeader& header, int32_t section, std::span<const std::byte> to);

// The fields that decide the order of eviction, from a record's first kPeekBytes, not verified. nullopt if this is no
// record of this version.
inline constexpr size_t kPeekBytes = 48;
struct RecordPeek {
  ModelFingerprint model;
  int64_t created_ms;
  double saves_ms;
};
std::optional<RecordPeek> peek(std::span<const std::byte> first);

}  // namespace vlcache
