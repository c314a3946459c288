// splitmix64, the public domain generator of Sebastiano Vigna.
#pragma once

#include <cstdint>

namespace vlcache {

inline constexpr uint64_t kSplitmixStep = 0x9e3779b97f4a7c15u;

// Well mixed bits of a number; of state += kSplitmixStep, call by call, the generator.
inline uint64_t splitmix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace vlcache
