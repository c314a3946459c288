// Names of a record's values in Redis, and the ranges of bytes in them that make up a section.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/record_seal.h"

namespace vlcache {

// Format 2: the id is the hash tag, so that a record's values lie in one slot of a cluster.
inline constexpr std::string_view kRedisPrefix = "vlcache:{", kRedisTagEnd = "}:";

inline std::string value_name(const RecordId& id, std::string_view part) {
  return std::string(kRedisPrefix) + hex(id) + std::string(kRedisTagEnd) + std::string(part);
}
inline std::string header_name(const RecordId& id) { return value_name(id, "h"); }
inline std::string piece_name(const RecordId& id, int64_t piece) { return value_name(id, std::to_string(piece)); }

// The id in a header's name; nullopt for any other name.
inline std::optional<RecordId> id_of_header_name(std::string_view name) {
  RecordId id{};
  if (name.size() != kRedisPrefix.size() + 2 * id.size() + kRedisTagEnd.size() + 1) return std::nullopt;
  for (size_t i = 0; i < id.size(); ++i) {
    const char* const at = name.data() + kRedisPrefix.size() + 2 * i;
    if (std::from_chars(at, at + 2, id[i], 16).ptr != at + 2) return std::nullopt;
  }
  if (header_name(id) != name) return std::nullopt;
  return id;
}

inline int64_t count_pieces(int64_t bytes, int64_t piece_bytes) { return (bytes + piece_bytes - 1) / piece_bytes; }

// A range of bytes of one value.
struct PieceRange {
  int64_t piece = 0;
  int64_t begin = 0, bytes = 0;
};
// The ranges of the values that hold `bytes` from `offset` of all sections' bytes. Empty for 0 bytes.
inline std::vector<PieceRange> piece_ranges(int64_t offset, int64_t bytes, int64_t piece_bytes) {
  std::vector<PieceRange> ranges;
  while (bytes > 0) {
    const int64_t begin = offset % piece_bytes;
    const int64_t n = std::min(bytes, piece_bytes - begin);
    ranges.push_back({offset / piece_bytes, begin, n});
    offset += n;
    bytes -= n;
  }
  return ranges;
}

}  // namespace vlcache
