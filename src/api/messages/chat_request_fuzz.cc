// Fuzzes the body of a chat completion: the result is a request within the limits, or an error with the reason.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "api/messages/media_testing.h"
#include "base/error.h"
#include "base/fuzz_target.h"

namespace vlcache {
namespace {

// Of a video whose frames are never decoded.
InputVideo blank_video(const VideoRequest& request) {
  const VideoChoice& choice = request.choice;
  if (!(choice.fps >= 0 && choice.fps <= VideoChoice::kMaxFps) || choice.max_frames < 0) std::abort();
  if ((request.video.clip == nullptr) == request.video.frames.empty()) std::abort();
  return {.where = request.video.where, .timing = {.n_frames = 1, .fps = 1}, .width = 1, .height = 1, .read = nullptr};
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
                          .uploads = &uploads_of_each_kind()};
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
