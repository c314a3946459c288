// From a request to the tokens that a model sees: placing and loading its images.
#include <charconv>
#include <utility>

#include "api/request_builder.h"
#include "base/error.h"
#include "cli/commands/request.h"
#include "engine/engine.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kMark = "<image:";

// A prompt cut at its marks: text parts, and images as {"type": "image", "number": index}.
OrderedJson cut_at_marks(std::string_view prompt, size_t n_images, std::vector<bool>& used) {
  OrderedJson parts = OrderedJson::array();
  std::string text;
  const auto flush = [&] {
    if (!text.empty()) parts.push_back({{"type", "text"}, {"text", std::exchange(text, "")}});
  };
  while (!prompt.empty()) {
    const size_t mark = prompt.find(kMark);
    text += prompt.substr(0, mark);
    if (mark == std::string_view::npos) break;
    prompt.remove_prefix(mark);
    size_t number = 0;
    const char* digits = prompt.data() + kMark.size();
    const char* end = prompt.data() + prompt.size();
    const char* close = std::from_chars(digits, end, number).ptr;
    if (close == digits || close == end || *close != '>') {  // a text that only begins like a mark
      text += kMark;
      prompt.remove_prefix(kMark.size());
      continue;
    }
    const auto length = static_cast<size_t>(close - prompt.data()) + 1;
    if (number < 1 || number > n_images || used[number - 1]) {
      throw Error(ErrorCode::kInput, "the prompt says " + std::string(prompt.substr(0, length)) +
                                         "; expected each of 1 to " + std::to_string(n_images) +
                                         " (the images given) at most once");
    }
    used[number - 1] = true;
    flush();
    parts.push_back({{"type", "image"}, {"number", number - 1}});
    prompt.remove_prefix(length);
  }
  flush();
  return parts;
}

// The content of a user message: text parts with images at their <image:N>, the other images first.
OrderedJson place_images(std::string_view prompt, size_t n_images) {
  std::vector<bool> used(n_images, false);
  OrderedJson placed = cut_at_marks(prompt, n_images, used);
  OrderedJson content = OrderedJson::array();
  for (size_t n = 0; n < n_images; ++n) {
    if (!used[n]) content.push_back({{"type", "image"}, {"number", n}});
  }
  for (OrderedJson& part : placed) content.push_back(std::move(part));
  return content;
}

std::vector<EncodedImage> read_images(const std::vector<std::string>& paths) {
  std::vector<EncodedImage> images;
  for (const std::string& path : paths) images.push_back(read_encoded_image(path));
  return images;
}

}  // namespace

Prompt prepare(const Engine& engine, const Question& question) {
  if (question.raw) return engine.prepare_raw(question.prompt, read_images(question.images));
  if (!question.messages.is_null()) return prepare_chat(engine, question.messages, read_images(question.images));

  OrderedJson content = place_images(question.prompt, question.images.size());
  std::vector<std::string> paths;
  for (OrderedJson& part : content) {
    if (part["type"] != "image") continue;
    paths.push_back(question.images[part["number"].get<size_t>()]);
    part.erase("number");
  }
  OrderedJson messages = OrderedJson::array();
  if (!question.system.empty()) messages.push_back({{"role", "system"}, {"content", question.system}});
  messages.push_back({{"role", "user"}, {"content", paths.empty() ? OrderedJson(question.prompt) : content}});
  return prepare_chat(engine, messages, read_images(paths));
}

}  // namespace vlcache
