// at(i): an index, signed here, as the standard library's containers take it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vlcache {

constexpr size_t at(int64_t i) { return static_cast<size_t>(i); }

}  // namespace vlcache
