// Computes SHA-256, for identities that must not collide by accident or intent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace vlcache {

using Sha256Digest = std::array<uint8_t, 32>;
std::string hex(const Sha256Digest& digest);

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Adds an integer, such as a length between two byte strings, so that these cannot run together.
  void add(int64_t value);
  Sha256Digest finish();  // once

 private:
  void* context_;  // EVP_MD_CTX
};

}  // namespace vlcache
