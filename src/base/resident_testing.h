// What the machine holds for this process. For tests of what gives memory back.
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
