// RecordKey: what a record was computed from; everything that its bytes depend on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace vlcache {

enum class RecordKind : uint8_t {
  kImage = 1,   // an image's encoder output and position-free KV
  kPrefix = 2,  // KV of the beginning of a prompt, positions part of the contents' digest
  kFile = 3,    // the bytes of a file that a client has named; the contents' digest is that of its owner and name
};

using ModelFingerprint = std::array<uint8_t, 16>;

inline constexpr size_t kMaxLayoutBytes = 256;

struct RecordKey {
  RecordKind kind = RecordKind::kImage;
  ModelFingerprint model{};
  Sha256Digest content{};  // of the image or tokens, and of every setting that decides the bytes
  std::string layout;      // layout of the bytes: "bf16 22x4x64"; printable ASCII, at most kMaxLayoutBytes

  bool operator==(const RecordKey&) const = default;
};

// Whether readers accept the key: a known kind, a layout within its limits.
bool valid(const RecordKey& key);
std::string_view record_kind_name(RecordKind kind);

}  // namespace vlcache
