// RecordSeal computes names and checksums of records. Without a salt they detect accidents (XXH3, at the speed of
// memory); with one they are keyed by it (HMAC-SHA256), so that an attacker with write access to a shared store, but
// without the salt, cannot change an answer or learn which images are stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/sha256.h"
#include "store/record_key.h"

namespace vlcache {

using RecordId = Sha256Digest;
using Checksum = std::array<uint8_t, 16>;

// The checksum of bytes that arrive piece by piece.
class ChecksumStream {
 public:
  ChecksumStream(ChecksumStream&&) noexcept;
  ~ChecksumStream();

  void add(std::span<const std::byte> bytes);
  Checksum finish();  // once

 private:
  friend class RecordSeal;
  struct State;
  explicit ChecksumStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class RecordSeal {
 public:
  // Empty salt: none. `id_bits` < 256 zeroes all other bits of every id, so that tests can make ids collide.
  explicit RecordSeal(std::string_view salt = {}, int id_bits = 256);
  ~RecordSeal();
  RecordSeal(const RecordSeal&) = delete;
  RecordSeal& operator=(const RecordSeal&) = delete;

  bool salted() const { return keyed_ != nullptr; }
  // Of the whole key and the format's version: SHA-256, or HMAC-SHA256 with the salt.
  RecordId id(const RecordKey& key) const;
  // Distinguishes salts without revealing them; zeros without one.
  const Checksum& tenant() const { return tenant_; }
  // Checksum of a header, without the stored checksum that follows it.
  Checksum header(std::span<const std::byte> bytes) const;
  // Checksum of the number-th section of a record, `bytes` long: bound to all three, so that no section passes for
  // another.
  ChecksumStream section(const RecordId& id, int64_t number, int64_t bytes) const;

 private:
  struct Keyed;
  ChecksumStream stream(std::string_view purpose) const;

  std::unique_ptr<Keyed> keyed_;  // null without a salt
  int id_bits_;
  Checksum tenant_{};
};

// Compares in constant time.
bool equal(const Checksum& a, const Checksum& b);

}  // namespace vlcache
