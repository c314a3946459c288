// Fuzzes the body of a chat completion: the result is a request within the limits, or an error with the reason.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "base/error.h"
#include "base/fuzz_target.h"

namespace vlcache {
namespace {

// Pages without their pixels, as many as may be.
std::vector<EncodedImage> blank_pages(const DocumentRequest& request) {
  std::vector<EncodedImage> pages(static_cast<size_t>(std::min(2, request.max_pages)), request.document);
  if (request.text) pages[0].text = "text";
  return pages;
}

// Of a video whose frames are never decoded.
InputVideo blank_video(const VideoRequest& request) {
  const VideoChoice& choice = request.choice;
  if (!(choice.fps >= 0 && choice.fps <= VideoChoice::kMaxFps) || choice.max_frames < 0) std::abort();
  if ((request.video.clip == nullptr) == request.video.frames.empty()) std::abort();
  return {.where = request.video.where, .timing = {.n_frames = 1, .fps = 1}, .width = 1, .height = 1, .read = nullptr};
}

// Files of each kind, by their kinds as ids.
Uploads& uploaded_files() {
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

FUZZ_TARGET(chat_request) {
  using namespace vlcache;
  NamedImages named(1 << 16);
  const ChatLimits limits{.max_images = 2,
                          .image = {.max_pixels = 1 << 16},
                          .read_document = blank_pages,
                          .read_video = blank_video,
                          .named_images = &named,
                          .uploads = &uploaded_files()};
  try {
    const ChatRequest r = read_chat_request(parse_body({reinterpret_cast<const char*>(data), size}), {}, limits);
    if (r.n() < 1 || r.n() > limits.max_answers || r.fields.max_tokens.value_or(1) < 0 || r.messages.empty())
      std::abort();
    std::vector<Message> messages = r.messages;
    if (template_json(messages).size() != messages.size()) std::abort();
    const InputMedia media = take_media(take_parts(messages));
    if (std::get<1>(media.images).size() + media.videos.size() > limits.max_images) std::abort();
  } catch (const Error& e) {
    if (std::string_view(e.what()).empty() || e.code() == ErrorCode::kIo || e.code() == ErrorCode::kBug) std::abort();
  }
  return 0;
}
