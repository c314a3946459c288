#include "base/error.h"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace vlcache {
namespace {

thread_local CheckScope::Failure t_failure = CheckScope::Failure::kAbort;

}  // namespace

CheckScope::CheckScope(Failure failure) : outer_(t_failure) { t_failure = failure; }
CheckScope::~CheckScope() { t_failure = outer_; }

Error caught_error() {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kMemory, "out of memory");
  } catch (const std::exception& e) {
    return Error(ErrorCode::kBug, std::string("a bug in vlcache ended this request: ") + e.what());
  }
}

void check_failed(const char* file, int line, const char* condition) {
  const std::string what = std::string(file) + ":" + std::to_string(line) + ": CHECK(" + condition + ") failed";
  std::fprintf(stderr, "vlcache: bug: %s\n", what.c_str());
  if (t_failure == CheckScope::Failure::kThrow) {
    throw Error(ErrorCode::kBug, "a bug in vlcache ended this request: " + what);
  }
  std::abort();
}

}  // namespace vlcache
