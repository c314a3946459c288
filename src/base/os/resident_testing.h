// Measures the memory the machine holds for this process, for tests of code that returns memory.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace vlcache {

inline int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace vlcache
