// XXH3 by libxxhash, HMAC by OpenSSL.
#include "store/record_seal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <xxhash.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "store/record.h"

namespace vlcache {
namespace {

struct FreeXxh {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
struct FreeMac {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using MacContext = std::unique_ptr<EVP_MAC_CTX, FreeMac>;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

// A context that has absorbed the salt, to be copied for every use.
struct RecordSeal::Keyed {
  MacContext context;
};

struct ChecksumStream::State {
  MacContext mac;                                // with a salt
  std::unique_ptr<XXH3_state_t, FreeXxh> plain;  // without

  void add(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (mac) {
      CHECK(EVP_MAC_update(mac.get(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) == 1);
    } else {
      CHECK(XXH3_128bits_update(plain.get(), bytes.data(), bytes.size()) == XXH_OK);
    }
  }
  void add(int64_t value) { add(std::as_bytes(std::span(&value, 1))); }
  Sha256Digest finish_mac() {
    Sha256Digest digest;
    size_t size = 0;
    CHECK(EVP_MAC_final(mac.get(), digest.data(), &size, digest.size()) == 1 && size == digest.size());
    return digest;
  }
};

ChecksumStream::ChecksumStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;
ChecksumStream::~ChecksumStream() = default;

void ChecksumStream::add(std::span<const std::byte> bytes) { state_->add(bytes); }

Checksum ChecksumStream::finish() {
  Checksum sum;
  if (state_->mac) {
    const Sha256Digest digest = state_->finish_mac();
    std::copy_n(digest.begin(), sum.size(), sum.begin());
  } else {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->plain.get()));
    std::copy_n(canonical.digest, sum.size(), sum.begin());
  }
  return sum;
}

RecordSeal::RecordSeal(std::string_view salt, int id_bits) : id_bits_(id_bits) {
  CHECK(0 <= id_bits && id_bits <= 256);
  if (salt.empty()) return;
  EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  CHECK(hmac != nullptr);
  MacContext context(EVP_MAC_CTX_new(hmac));
  EVP_MAC_free(hmac);  // the context holds it
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  const auto* bytes = reinterpret_cast<const unsigned char*>(salt.data());
  CHECK(context && EVP_MAC_init(context.get(), bytes, salt.size(), params) == 1);
  keyed_ = std::make_unique<Keyed>(Keyed{std::move(context)});
  tenant_ = stream("tenant").finish();
}

RecordSeal::~RecordSeal() = default;

ChecksumStream RecordSeal::stream(std::string_view purpose) const {
  auto state = std::make_unique<ChecksumStream::State>();
  if (keyed_) {
    state->mac.reset(EVP_MAC_CTX_dup(keyed_->context.get()));
    CHECK(state->mac != nullptr);
  } else {
    state->plain.reset(XXH3_createState());
    CHECK(state->plain != nullptr && XXH3_128bits_reset(state->plain.get()) == XXH_OK);
  }
  state->add(static_cast<int64_t>(purpose.size()));
  state->add(bytes_of(purpose));
  return ChecksumStream(std::move(state));
}

RecordId RecordSeal::id(const RecordKey& key) const {
  std::string text = "vlcache record " + std::to_string(kRecordVersion) + '\n';
  text += static_cast<char>(key.kind);
  text.append(key.model.begin(), key.model.end());
  text.append(key.content.begin(), key.content.end());
  text += key.layout;  // the only part of variable size comes last
  RecordId id;
  if (keyed_) {
    ChecksumStream keyed = stream("id");
    keyed.add(bytes_of(text));
    id = keyed.state_->finish_mac();
  } else {
    Sha256 hash;
    hash.add(bytes_of(text));
    id = hash.finish();
  }
  for (int bit = id_bits_; bit < 256; ++bit) {
    uint8_t& byte = id[static_cast<size_t>(bit) / 8];
    byte = static_cast<uint8_t>(byte & ~(0x80 >> bit % 8));
  }
  return id;
}

Checksum RecordSeal::header(std::span<const std::byte> bytes) const {
  ChecksumStream sum = stream("header");
  sum.add(bytes);
  return sum.finish();
}

ChecksumStream RecordSeal::section(const RecordId& id, int64_t number, int64_t bytes) const {
  ChecksumStream sum = stream("section");
  sum.add(std::as_bytes(std::span(id)));
  sum.state_->add(number);
  sum.state_->add(bytes);
  return sum;
}

bool equal(const Checksum& a, const Checksum& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace vlcache
