// Fuzzes session.json: a session that is read stays the same when it is written and read again, and names no files but
// images.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "cli/commands/session.h"

FUZZ_TARGET(session) {
  using namespace vlcache;
  try {
    const SessionText session = parse_session({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const auto& turn : session.images) {
      for (const std::string& name : turn) {
        if (name.find_first_not_of("0123456789abcdef") != std::string::npos) std::abort();
      }
    }
    for (const ImageSpan& span : session.state.kv.spans) {
      if (span.end > std::ssize(session.state.kv.ids)) std::abort();
    }
    const std::string text = session_text(session);
    if (session_text(parse_session(text, "fuzz")) != text) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
