// Loops over floats, compiled so that they may be added up in any order (CMakeLists.txt) and so by vectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

float inner_product(const float* a, const float* b, int64_t n);
// y += factor x
void add_scaled(float factor, const float* x, float* y, int64_t n);

// a [rows, columns] as [columns, rows].
std::vector<float> transposed(std::span<const float> a, int64_t rows, int64_t columns);

}  // namespace vlcache
