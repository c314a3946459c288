// Fuzzes a line of `run --requests`, of our own or of a batch: the result is a request, or an error with the reason.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/fuzz_target.h"
#include "cli/flags/batch_line.h"
#include "cli/flags/request.h"

FUZZ_TARGET(request) {
  using namespace vlcache;
  static const RequestFields kDefaults = fallback_fields(Front::kRun);
  if (const std::optional<BatchLine> batch = read_batch_line({reinterpret_cast<const char*>(data), size})) {
    if (batch->error.empty() && (!batch->body.is_object() || batch->endpoint.empty())) std::abort();
  }
  const RequestLine line = read_request({reinterpret_cast<const char*>(data), size}, {}, kDefaults);
  if (!line.question) {
    if (line.error.empty()) std::abort();
    return 0;
  }
  const Question& r = *line.question;
  if (*line.fields.max_tokens < 1 || (r.raw && !r.messages.empty())) std::abort();
  for (const std::string& path : r.images) {
    if (path.find('\0') != std::string::npos) std::abort();
  }
  return 0;
}
