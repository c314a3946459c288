// Measures elapsed time.
#pragma once

#include <chrono>

namespace vlcache {

using Clock = std::chrono::steady_clock;

inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
inline double seconds_since(Clock::time_point start) { return ms_since(start) / 1000.0; }

}  // namespace vlcache
