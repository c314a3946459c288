// Fuzzes a line of `run --input`: it is a request, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "cli/request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vlcache;
  static const UserRequest kDefaults;
  try {
    const UserRequest r = parse_request({reinterpret_cast<const char*>(data), size}, kDefaults);
    if (r.options.max_tokens < 1 || (r.raw && !r.messages.is_null())) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
