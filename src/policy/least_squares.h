// Small least-squares problems, for policies that fit what they keep to what goes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

// u >= least that minimises |M u - s|: m_t [t, n] holds M's columns as rows, s [n]. By cyclic coordinate descent from
// u = 1, until a sweep changes little.
std::vector<float> bounded_least_squares(std::span<const float> m_t, std::span<const float> s, float least);

// C [t, d] that minimises |X C - Y|^2 + ridge |X|_F^2 / min(n, t) |C - C0|^2: X [n, t], Y [n, d], and C holds C0 when
// called. With fewer rows than columns what the rows do not say stays as in C0.
void ridge_least_squares(std::span<const float> x, std::span<const float> y, int64_t n, int64_t t, int64_t d,
                         double ridge, std::span<float> c);

}  // namespace vlcache
