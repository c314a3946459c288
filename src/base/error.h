// The one exception of vlcache: what was expected, what was found, where. For input and environment, never for our own
// bugs (CHECK).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace vlcache {

enum class ErrorCode {
  kInput,        // a file, flag or request says something that cannot be
  kUnsupported,  // well-formed, but nothing here implements it
  kNotFound,     // a path, tensor or name that is not there
  kShape,        // sizes that do not fit together
  kMemory,       // an allocation failed or a limit was reached
  kIo,           // reading or writing failed
  kCancelled,    // the caller asked to stop
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

// An invariant of our own code: prints where and aborts. Values from files and requests are validated with Error
// instead.
#define CHECK(condition) ((condition) ? static_cast<void>(0) : ::vlcache::check_failed(__FILE__, __LINE__, #condition))

}  // namespace vlcache
