// A hash of texts that come from requests: for std::hash, texts that collide can be made, and a table of them is as
// slow as a list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vlcache {

// SipHash-1-3 under a random key of the process. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF".
uint64_t keyed_hash(std::string_view text);

struct KeyedHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return keyed_hash(text); }
};

}  // namespace vlcache
