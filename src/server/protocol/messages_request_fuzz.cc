// Fuzzes the bodies of Anthropic's messages and OpenAI's Responses: each becomes a request within the limits, or there
// is an error with the reason.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/media_testing.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "server/http/json_reply.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"

FUZZ_TARGET(messages_request) {
  using namespace vlcache;
  const ChatLimits limits{.max_images = 2,
                          .image = {.max_pixels = 1 << 16},
                          .read_document = blank_pages,
                          .uploads = &uploads_of_each_kind()};
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  for (const bool anthropic : {true, false}) {
    try {
      const nlohmann::ordered_json body = parse_body(text);
      ResponsesPlan tools;
      const ChatRequest r =
          anthropic ? read_messages_request(body, {}, limits) : read_responses_request(body, {}, limits, tools);
      std::vector<Message> messages = r.messages;
      if (messages.empty() || template_json(messages).size() != messages.size()) std::abort();
      if (std::get<1>(take_media(take_parts(messages)).images).size() > limits.max_images) std::abort();
    } catch (const Error& e) {
      if (std::string_view(e.what()).empty() || http_status(e) >= 500) std::abort();
    }
  }
  return 0;
}
