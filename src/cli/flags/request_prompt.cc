// From a request to the tokens that a model sees: placing and loading its images.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <span>
#include <utility>

#include "api/request_builder.h"
#include "base/error.h"
#include "cli/flags/command.h"
#include "cli/flags/request.h"
#include "engine/engine.h"
#include "engine/prompt/document_reader.h"
#include "engine/prompt/prompt_media.h"
#include "io/checkpoint/checkpoint.h"
#include "io/document/page_selection.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Where images or videos stand in a prompt.
struct Marks {
  std::string_view begin;    // "<image:"
  const char *type, *given;  // of parts; in errors
  std::vector<bool> used;    // by number
};

// A mark at the beginning of `prompt`: its number, and how long it is. 0: a text that only begins like one.
size_t number_of_mark(std::string_view prompt, Marks& marks, size_t& length) {
  size_t number = 0;
  const char* digits = prompt.data() + marks.begin.size();
  const char* end = prompt.data() + prompt.size();
  const char* close = std::from_chars(digits, end, number).ptr;
  if (close == digits || close == end || *close != '>') return 0;
  length = static_cast<size_t>(close - prompt.data()) + 1;
  if (number < 1 || number > marks.used.size() || marks.used[number - 1]) {
    throw Error(ErrorCode::kInput, "the prompt says " + std::string(prompt.substr(0, length)) +
                                       "; expected each of 1 to " + std::to_string(marks.used.size()) + " (the " +
                                       marks.given + " given) at most once");
  }
  marks.used[number - 1] = true;
  return number;
}

// A prompt cut at its marks: text parts, and images and videos as {"type": "image", "number": index}.
OrderedJson cut_at_marks(std::string_view prompt, std::span<Marks> all) {
  OrderedJson parts = OrderedJson::array();
  std::string text;
  const auto flush = [&] {
    if (!text.empty()) parts.push_back({{"type", "text"}, {"text", std::exchange(text, "")}});
  };
  while (!prompt.empty()) {
    const auto found = std::ranges::find_if(all, [&](const Marks& m) { return prompt.starts_with(m.begin); });
    size_t length = 1;
    const size_t number = found == all.end() ? 0 : number_of_mark(prompt, *found, length);
    if (number == 0) {
      text += prompt.front();
    } else {
      flush();
      parts.push_back({{"type", found->type}, {"number", number - 1}});
    }
    prompt.remove_prefix(number == 0 ? 1 : length);
  }
  flush();
  return parts;
}

// The content of a user message: text parts with images and videos at their marks, the others first.
OrderedJson place_media(const Question& question) {
  Marks marks[] = {{"<image:", "image", "images", std::vector<bool>(question.images.size())},
                   {"<video:", "video", "videos", std::vector<bool>(question.videos.size())}};
  OrderedJson placed = cut_at_marks(question.prompt, marks);
  OrderedJson content = OrderedJson::array();
  size_t next[] = {0, 0};
  const auto add_next = [&](size_t kind) {
    const size_t n = next[kind]++;
    if (n < marks[kind].used.size() && !marks[kind].used[n]) {
      content.push_back({{"type", marks[kind].type}, {"number", n}});
    }
  };
  for (const char kind : question.order) add_next(kind == 'v' ? 1 : 0);
  for (const size_t kind : {0, 1}) {
    while (next[kind] < marks[kind].used.size()) add_next(kind);
  }
  for (OrderedJson& part : placed) content.push_back(std::move(part));
  return content;
}

// Replaces the parts of images and videos of a message's content by those of their files.
class Placing {
 public:
  Placing(const Engine& engine, const Question& question) : engine_(engine), question_(question) {}

  void place(const std::string& path, OrderedJson& content) {
    for (EncodedImage& image : read_images(engine_, path, question_.pdf_text, question_.image_options)) {
      add_image_parts(image, content);
      images_.push_back(std::move(image));
    }
  }
  void place(const VideoPath& path, OrderedJson& content) {
    videos_.push_back(probed_video(engine_, path, question_.image_options).input);
    content.push_back({{"type", "video"}});
  }
  // For a prompt that has its placeholders already. Throws Error(kInput) for an image that comes with a text.
  void place_without_text(const std::string& path) {
    OrderedJson parts;
    place(path, parts);
    const size_t n_images = std::ranges::count(parts, OrderedJson{{"type", "image"}});
    if (n_images == parts.size()) return;
    throw Error(ErrorCode::kInput, path + ": --pdf-text has no place in a prompt with placeholders of its own");
  }
  void place_without_text(const VideoPath& path) {
    OrderedJson parts;
    place(path, parts);
  }
  InputMedia take() { return {std::move(images_), std::move(videos_)}; }

 private:
  const Engine& engine_;
  const Question& question_;
  std::vector<EncodedImage> images_;
  std::vector<InputVideo> videos_;
};

// Those from `first` on, for placeholders within a text.
template <typename Path>
void place_rest(const std::vector<Path>& paths, size_t first, Placing& placing) {
  for (; first < paths.size(); ++first) placing.place_without_text(paths[first]);
}

Prompt prepare_messages(const Engine& engine, const Question& question) {
  OrderedJson messages = question.messages;
  Placing placing(engine, question);
  size_t next_image = 0, next_video = 0;
  for (OrderedJson& message : messages) {
    if (!message.contains("content") || !message["content"].is_array()) continue;
    OrderedJson content = OrderedJson::array();
    for (OrderedJson& part : message["content"]) {
      const OrderedJson type = part.is_object() ? part.value("type", OrderedJson()) : OrderedJson();
      if (type == "image") {
        placing.place(question.images.at(next_image++), content);
      } else if (type == "video") {
        placing.place(question.videos.at(next_video++), content);
      } else {
        content.push_back(std::move(part));
      }
    }
    message["content"] = std::move(content);
  }
  place_rest(question.images, next_image, placing);
  place_rest(question.videos, next_video, placing);
  return prepare_chat(engine, messages, placing.take());
}

ProbedVideo probe(const VideoPath& path) {
  VideoRequest request{.video = {}, .choice = path.video.choice, .options = {}, .limits = {}, .cancelled = interrupted};
  if (path.frames.empty()) {
    request.video = load_video(path.video.path);
  } else {
    request.video.where = path.frames.front();
    for (const std::string& frame : path.frames) request.video.frames.push_back(read_encoded_image(frame).bytes);
  }
  ProbedVideo video = input_video(std::move(request));
  if (video.info.has_audio) {
    static const bool told = std::fputs("note: the sound of videos is ignored\n", stderr) >= 0;
    static_cast<void>(told);
  }
  return video;
}

}  // namespace

std::vector<EncodedImage> read_images(const Engine& engine, const std::string& path, bool pdf_text,
                                      const ImageOptions& options) {
  const PathAndPages file = split_pages(path);
  EncodedImage image = read_encoded_image(file.path);
  if (!clip_media_type(*image.bytes).empty()) {
    throw Error(ErrorCode::kInput, path + ": expected an image or a PDF, found a video; give it with -v");
  }
  image.options = options;
  if (!media_type(*image.bytes).empty() || !is_pdf(*image.bytes)) {
    if (file.path != path) throw Error(ErrorCode::kInput, path + ": expected pages of a PDF alone; this is an image");
    std::vector<EncodedImage> images;
    images.push_back(std::move(image));
    return images;
  }
  return engine.media().read_document(
      {.document = std::move(image),
       .name = std::filesystem::path(file.path).filename(),
       .pages = file.pages,
       .advice = "select pages: " + file.path + "#1-" + std::to_string(PdfRequest::kMaxPages),
       .text = pdf_text,
       .numbered = true,
       .cancelled = interrupted});
}

ProbedVideo probed_video(const Engine& engine, const VideoPath& path, const ImageOptions& options) {
  if (path.probed == nullptr) engine.media().check_takes_videos();
  ProbedVideo video = path.probed != nullptr ? *path.probed : probe(path);
  video.input.options = options;
  return video;
}

std::vector<VideoPath> probed_videos(const std::vector<std::string>& arguments, const Checkpoint& checkpoint) {
  std::vector<VideoPath> paths;
  for (const std::string& argument : arguments) {
    paths.push_back({.video = parse_video_argument(argument), .frames = {}});
  }
  if (!paths.empty()) check_takes_videos(Model::read_config(checkpoint));
  for (VideoPath& path : paths) path.probed = std::make_shared<const ProbedVideo>(probe(path));
  return paths;
}

Prompt prepare(const Engine& engine, const Question& question) {
  if (question.raw) {
    Placing placing(engine, question);
    place_rest(question.images, 0, placing);
    place_rest(question.videos, 0, placing);
    return engine.prepare_raw(question.prompt, placing.take());
  }
  if (!question.messages.is_null()) return prepare_messages(engine, question);

  Placing placing(engine, question);
  OrderedJson content = OrderedJson::array();
  for (OrderedJson& part : place_media(question)) {
    if (part["type"] == "image") {
      placing.place(question.images[part["number"].get<size_t>()], content);
    } else if (part["type"] == "video") {
      placing.place(question.videos[part["number"].get<size_t>()], content);
    } else {
      content.push_back(std::move(part));
    }
  }
  const bool no_media = question.images.empty() && question.videos.empty();
  OrderedJson messages = OrderedJson::array();
  if (!question.system.empty()) messages.push_back({{"role", "system"}, {"content", question.system}});
  messages.push_back({{"role", "user"}, {"content", no_media ? OrderedJson(question.prompt) : content}});
  return prepare_chat(engine, messages, placing.take());
}

}  // namespace vlcache
