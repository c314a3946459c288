// Fuzzes the body of a chat completion: the result is a request within the limits, or an error with the reason.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "server/http/json_reply.h"
#include "server/protocol/chat_reply.h"

FUZZ_TARGET(chat_request) {
  using namespace vlcache;
  NamedImages named(1 << 16);
  const ChatLimits limits{.max_images = 2, .image = {.max_pixels = 1 << 16}, .named_images = &named};
  try {
    const ChatRequest r = read_chat_request({reinterpret_cast<const char*>(data), size}, {}, limits);
    if (r.n() < 1 || r.n() > limits.max_answers || r.fields.max_tokens.value_or(1) < 0) std::abort();
    if (r.images.size() > limits.max_images || !r.messages.is_array() || r.messages.empty()) std::abort();
  } catch (const Error& e) {
    const nlohmann::ordered_json error = error_json(e)["error"];
    if (error["message"].get_ref<const std::string&>().empty() || http_status(e) >= 500) std::abort();
  }
  return 0;
}
