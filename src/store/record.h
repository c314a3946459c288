// The record: what a tier stores, and all that is needed to know whether it may be used. A header, then the bytes of
// its sections. Section 0 is an encoder's output, section 1 + i the K and V of layer i; nothing here depends on that.
//
//   at      bytes          what (integers little-endian)
//   0       8              magic
//   8       4              version
//   12      4              bytes of the header, checksum included
//   16      1, 1, 2        kind; 0; bytes of the layout
//   20      4              number of sections
//   24      8              when it was made, ms since 1970
//   32      16             the model's fingerprint
//   48      32             digest of the contents
//   80      16             tenant (RecordSeal::tenant)
//   96      layout, filled with zeros to a multiple of 8
//           24 a section   bytes (8), checksum (16)
//           16             checksum of everything before it
//
// Every byte is bound by a checksum: a section by the one in the header, the header by its own.
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
// No header is longer: limits of layout and sections, 98,688 bytes.
inline constexpr int64_t kMaxHeaderBytes = 96 + int64_t{kMaxLayoutBytes} + 24 * int64_t{kMaxSections} + 16;

struct SectionInfo {
  int64_t bytes = 0;
  Checksum sum{};
  bool operator==(const SectionInfo&) const = default;
};

struct RecordHeader {
  RecordKey key;
  int64_t created_ms = 0;  // since 1970
  std::vector<SectionInfo> sections;

  int64_t bytes() const;                         // of the header itself
  int64_t section_offset(size_t section) const;  // from the record's first byte; of n_sections: the record's size
};

// What is to be stored: views, and what keeps them alive for whoever stores them later (nothing, if the caller waits).
struct Record {
  RecordKey key;
  std::vector<std::span<const std::byte>> sections;
  std::shared_ptr<const void> owner;
  int64_t created_ms = 0;          // 0: now
  const SavePace* pace = nullptr;  // asked between pieces; null: as fast as the medium takes it

  int64_t bytes() const;  // of the sections
};

int64_t now_ms();  // since 1970

// The header's bytes, checksum included. The key must be valid, sections at most kMaxSections.
std::vector<std::byte> encode_header(const RecordSeal& seal, const RecordHeader& header);
// The header of what is to be stored: reads every section once.
RecordHeader make_header(const RecordSeal& seal, const Record& record);

// How many bytes the header takes that begins like this (at least 16 bytes of it); 0 where no header does.
int64_t header_bytes(std::span<const std::byte> first);

// Of a record whose sections are not stored behind its header: they may have up to kMaxRecordBytes, as the header says.
inline constexpr int64_t kUnknownBytes = -1;
inline constexpr int64_t kMaxRecordBytes = int64_t{1} << 40;

// Takes in the header of a record of `record_bytes`; `first` are its first bytes, at least the header's. None: `header`
// is verified, and of `expected` if that is given. Nothing is allocated for sizes that the bytes do not bear out.
std::optional<Miss> parse_header(const RecordSeal& seal, std::span<const std::byte> first, int64_t record_bytes,
                                 const RecordKey* expected, RecordHeader& header);

// kExpired where the record is older than that. ttl_ms 0: it may be of any age.
std::optional<Miss> check_age(const RecordHeader& header, int64_t ttl_ms);
// Whether the section is there and has as many bytes as a reader has room for.
std::optional<Miss> check_target(const RecordHeader& header, int32_t section, std::span<const std::byte> to);

// What decides which record goes first, from its first kPeekBytes, not verified. None where this is no record of this
// version.
inline constexpr size_t kPeekBytes = 48;
struct RecordPeek {
  ModelFingerprint model;
  int64_t created_ms;
};
std::optional<RecordPeek> peek(std::span<const std::byte> first);

}  // namespace vlcache
