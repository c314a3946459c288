// From a request to the tokens that a model sees: placing and loading its images.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "api/request_builder.h"
#include "base/error.h"
#include "cli/commands/request.h"
#include "cli/flags/command.h"
#include "engine/engine.h"
#include "engine/prompt/document_reader.h"
#include "io/document/page_selection.h"

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

// Replaces every image's part of a message's content by those of its file, the next of `paths`.
class Placing {
 public:
  Placing(const Engine& engine, const Question& question) : engine_(engine), question_(question) {}

  void place(const std::string& path, OrderedJson& content) {
    for (EncodedImage& image : read_images(engine_, path, question_.pdf_text)) {
      add_image_parts(image, content);
      images_.push_back(std::move(image));
    }
  }
  // For a prompt that has its placeholders already. Throws Error(kInput) for an image that comes with a text.
  void place_without_text(const std::string& path) {
    OrderedJson parts;
    place(path, parts);
    const size_t n_images = std::ranges::count(parts, OrderedJson{{"type", "image"}});
    if (n_images == parts.size()) return;
    throw Error(ErrorCode::kInput, path + ": --pdf-text has no place in a prompt with placeholders of its own");
  }
  std::vector<EncodedImage> take() { return std::move(images_); }

 private:
  const Engine& engine_;
  const Question& question_;
  std::vector<EncodedImage> images_;
};

Prompt prepare_messages(const Engine& engine, const Question& question) {
  OrderedJson messages = question.messages;
  Placing placing(engine, question);
  size_t next = 0;
  for (OrderedJson& message : messages) {
    if (!message.contains("content") || !message["content"].is_array()) continue;
    OrderedJson content = OrderedJson::array();
    for (OrderedJson& part : message["content"]) {
      if (part.is_object() && part.value("type", OrderedJson()) == "image") {
        placing.place(question.images.at(next++), content);
      } else {
        content.push_back(std::move(part));
      }
    }
    message["content"] = std::move(content);
  }
  for (; next < question.images.size(); ++next) placing.place_without_text(question.images[next]);
  return prepare_chat(engine, messages, placing.take());
}

}  // namespace

std::vector<EncodedImage> read_images(const Engine& engine, const std::string& path, bool pdf_text) {
  const PathAndPages file = split_pages(path);
  EncodedImage image = read_encoded_image(file.path);
  if (!media_type(*image.bytes).empty() || !is_pdf(*image.bytes)) {
    if (file.path != path) throw Error(ErrorCode::kInput, path + ": expected pages of a PDF alone; this is an image");
    std::vector<EncodedImage> images;
    images.push_back(std::move(image));
    return images;
  }
  return engine.read_document({.document = std::move(image),
                               .name = std::filesystem::path(file.path).filename(),
                               .pages = file.pages,
                               .advice = "select pages: " + file.path + "#1-" + std::to_string(PdfRequest::kMaxPages),
                               .text = pdf_text,
                               .numbered = true,
                               .cancelled = interrupted});
}

Prompt prepare(const Engine& engine, const Question& question) {
  if (question.raw) {
    Placing placing(engine, question);
    for (const std::string& path : question.images) placing.place_without_text(path);
    return engine.prepare_raw(question.prompt, placing.take());
  }
  if (!question.messages.is_null()) return prepare_messages(engine, question);

  Placing placing(engine, question);
  OrderedJson content = OrderedJson::array();
  for (OrderedJson& part : place_images(question.prompt, question.images.size())) {
    if (part["type"] == "image") {
      placing.place(question.images[part["number"].get<size_t>()], content);
    } else {
      content.push_back(std::move(part));
    }
  }
  OrderedJson messages = OrderedJson::array();
  if (!question.system.empty()) messages.push_back({{"role", "system"}, {"content", question.system}});
  messages.push_back({{"role", "user"}, {"content", question.images.empty() ? OrderedJson(question.prompt) : content}});
  return prepare_chat(engine, messages, placing.take());
}

}  // namespace vlcache
