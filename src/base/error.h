// Error, the one exception of vlcache: it states the expected, the found and the place. It is for input and
// environment; our own bugs are CHECKs, which end the process, or only the request where CheckScope says so.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace vlcache {

enum class ErrorCode {
  kInput,        // a file, flag or request holds an invalid value
  kUnsupported,  // well-formed, but nothing here implements it
  kNotFound,     // a path, tensor or name does not exist
  kShape,        // sizes that do not fit together
  kMemory,       // an allocation failed or a limit was reached
  kOutOfPages,   // all pages of the KV cache are in use: thrown by its pool alone
  kIo,           // reading or writing failed
  kCancelled,    // the caller asked to stop
  kBug,          // a CHECK failed in the work of one request (CheckScope), or a library threw an unexpected exception
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// The exception being handled, in a catch clause: an Error as it is, std::bad_alloc as kMemory, any other as kBug.
Error caught_error();

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

// What a failed CHECK of this thread does while the scope lives; the innermost scope counts, without one kAbort.
//   kThrow: throws Error(kBug). For work that changes the state of one request alone, which then ends.
//   kAbort: ends the process. For changes of what requests share (pages, prefixes, stored images): half a change
//           could give another request a wrong answer.
// In a function that must not throw, such as a destructor, kThrow ends the process, too.
class CheckScope {
 public:
  enum class Failure : uint8_t { kAbort, kThrow };
  explicit CheckScope(Failure failure);
  ~CheckScope();
  CheckScope(const CheckScope&) = delete;
  CheckScope& operator=(const CheckScope&) = delete;

 private:
  Failure outer_;
};

// An invariant of our own code: prints where it failed, then does what CheckScope says. Values from files and requests
// are validated with Error instead.
#define CHECK(condition) ((condition) ? static_cast<void>(0) : ::vlcache::check_failed(__FILE__, __LINE__, #condition))

}  // namespace vlcache
