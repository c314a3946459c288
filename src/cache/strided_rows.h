// Copies tables whose rows lie `stride` elements apart: page ids and slots per kv head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vlcache {

// The table with rows of another stride: elements that fit both are kept, the rest is zero.
template <typename T>
std::vector<T> with_stride(const std::vector<T>& table, int64_t old_stride, int64_t stride) {
  const int64_t n_rows = old_stride > 0 ? static_cast<int64_t>(table.size()) / old_stride : 0;
  std::vector<T> out(static_cast<size_t>(n_rows * stride));
  for (int64_t row = 0; row < n_rows; ++row) {
    std::copy_n(table.begin() + row * old_stride, std::min(old_stride, stride), out.begin() + row * stride);
  }
  return out;
}

}  // namespace vlcache
