// Fuzzes the bodies of Anthropic's messages and OpenAI's Responses: each is translated to a chat completion within the
// limits, or there is an error with the reason.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "server/http/json_reply.h"
#include "server/protocol/chat_reply.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"

namespace vlcache {
namespace {

// Pages without their pixels, as many as may be.
std::vector<EncodedImage> pages_without_pixels(const DocumentRequest& request) {
  std::vector<EncodedImage> pages(static_cast<size_t>(std::min(2, request.max_pages)), request.document);
  if (request.text) pages[0].text = "text";
  return pages;
}

}  // namespace
}  // namespace vlcache

FUZZ_TARGET(messages_request) {
  using namespace vlcache;
  const ChatLimits limits{.max_images = 2, .image = {.max_pixels = 1 << 16}, .read_document = pages_without_pixels};
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  for (const bool anthropic : {true, false}) {
    try {
      const nlohmann::ordered_json body = parse_body(text);
      ResponsesPlan tools;
      const ChatRequest r =
          chat_request_of(anthropic ? chat_of_messages(body) : chat_of_responses(body, tools), {}, limits);
      if (r.images.size() > limits.max_images || !r.messages.is_array() || r.messages.empty()) std::abort();
    } catch (const Error& e) {
      if (std::string_view(e.what()).empty() || http_status(e) >= 500) std::abort();
    }
  }
  return 0;
}
