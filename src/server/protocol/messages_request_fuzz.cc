// Fuzzes the bodies of Anthropic's messages and OpenAI's Responses: each becomes a request within the limits, or there
// is an error with the reason.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "server/http/json_reply.h"
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

// Files of each kind, by their kinds as ids.
Uploads& uploads_of_each_kind() {
  static Uploads uploads({.max_bytes = 1 << 20});
  static const bool filled = [] {
    constexpr std::pair<const char*, std::string_view> kFiles[] = {
        {"image", "GIF89a"}, {"pdf", "%PDF-1.7"}, {"text", "hello"}, {"clip", "\x1a\x45\xdf\xa3"}};
    for (const auto& [id, text] : kFiles) {
      const auto bytes = std::as_bytes(std::span(text));
      Upload file{.id = id, .name = id, .purpose = "", .type = upload_type(bytes, "")};
      file.bytes = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
      uploads.add("", std::move(file), 0, id);
    }
    return true;
  }();
  (void)filled;
  return uploads;
}

}  // namespace
}  // namespace vlcache

FUZZ_TARGET(messages_request) {
  using namespace vlcache;
  const ChatLimits limits{.max_images = 2,
                          .image = {.max_pixels = 1 << 16},
                          .read_document = pages_without_pixels,
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
