// Where a failed CHECK ends.
#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace vlcache {

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "vlcache: bug: %s:%d: CHECK(%s) failed\n", file, line, condition);
  std::abort();
}

}  // namespace vlcache
