// Position: where rotary embeddings place a token.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vlcache {

// Time, row and column (M-RoPE: arXiv:2409.12191, section 2.1). Text, and every token of a model without M-RoPE, has
// three equal components. A position is not an index: the tokens of an image share t, and a token after an image stands
// after the largest component of any of its tokens. Windows count tokens.
struct Position {
  int32_t t = 0, h = 0, w = 0;

  static constexpr Position all(int32_t p) { return {p, p, p}; }
  constexpr int32_t largest() const { return std::max({t, h, w}); }
  constexpr int32_t smallest() const { return std::min({t, h, w}); }
  // No component above `most`.
  constexpr Position capped(int32_t most) const { return {std::min(t, most), std::min(h, most), std::min(w, most)}; }
  constexpr Position moved(int32_t by) const { return {t + by, h + by, w + by}; }
  bool operator==(const Position&) const = default;
};

// The component that a frequency of a rotation multiplies.
enum class RopeAxis : uint8_t { kT, kH, kW };
constexpr int32_t component(const Position& p, RopeAxis axis) {
  return axis == RopeAxis::kT ? p.t : axis == RopeAxis::kH ? p.h : p.w;
}

}  // namespace vlcache
