// at(i) turns a signed index, as used here, into the unsigned one that standard containers accept.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vlcache {

constexpr size_t at(int64_t i) { return static_cast<size_t>(i); }

}  // namespace vlcache
