// Loops over floats, compiled so that they may be added up in any order (CMakeLists.txt) and so by vectors.
#pragma once

#include <cstdint>

namespace vlcache {

float inner_product(const float* a, const float* b, int64_t n);
// y += factor x
void add_scaled(float factor, const float* x, float* y, int64_t n);

}  // namespace vlcache
