// SHA-256 by OpenSSL, which uses the processor's own instructions.
#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {
EVP_MD_CTX* evp(void* context) { return static_cast<EVP_MD_CTX*>(context); }
}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr && EVP_DigestInit_ex(evp(context_), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(evp(context_)); }

void Sha256::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(evp(context_), bytes.data(), bytes.size()) == 1);
}

void Sha256::add(int64_t value) { add(std::as_bytes(std::span(&value, 1))); }

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  CHECK(EVP_DigestFinal_ex(evp(context_), digest.data(), nullptr) == 1);
  return digest;
}

std::string hex(const Sha256Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += format("%02x", byte);
  return text;
}

}  // namespace vlcache
