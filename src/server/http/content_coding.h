// Unpacks the bodies of requests that name a Content-Encoding (RFC 9110 8.4).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vlcache {

// What decode_body did.
enum class Decoded {
  kDone,
  kUnknownCoding,  // none that this server knows
  kDamaged,
  kTooLarge,  // more than max_bytes when unpacked
};

inline constexpr const char* kKnownCodings = "gzip, deflate, zstd";

// Replaces the body by what it was before it was coded; `codings`: the header's value, "" or "identity" for none.
Decoded decode_body(std::string& body, std::string_view codings, size_t max_bytes);

}  // namespace vlcache
