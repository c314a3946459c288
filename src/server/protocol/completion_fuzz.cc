// Fuzzes the body of a completion: the result is a request within the limits, or an error with the reason.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/fuzz_target.h"
#include "server/http/json_reply.h"
#include "server/protocol/completion.h"

FUZZ_TARGET(completion) {
  using namespace vlcache;
  const ChatLimits limits;
  try {
    const CompletionRequest r = read_completion_request({reinterpret_cast<const char*>(data), size}, {}, limits);
    if (r.prompts.empty() || r.prompts.size() > 64 || r.fields.n() < 1 || r.fields.n() > limits.max_answers)
      std::abort();
    for (const CompletionRequest::Text& prompt : r.prompts) {
      if (prompt.text.empty() == prompt.tokens.empty()) std::abort();
    }
  } catch (const Error& e) {
    if (http_status(e) >= 500 || std::string_view(e.what()).empty()) std::abort();
  }
  return 0;
}
