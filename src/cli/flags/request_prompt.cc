// From a request to the tokens that a model sees: placing and loading its images.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <span>
#include <utility>

#include "api/messages/data_uri.h"
#include "api/request_builder.h"
#include "base/error.h"
#include "cli/flags/command.h"
#include "cli/flags/request.h"
#include "engine/engine.h"
#include "engine/prompt/document_reader.h"
#include "engine/prompt/prompt_media.h"
#include "io/checkpoint/checkpoint.h"
#include "io/document/page_selection.h"
#include "io/image/other_formats.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

// A text, or an image or video by its index.
struct Piece {
  char kind;  // 't', 'i', 'v'
  std::string text = "";
  size_t index = 0;
};

// Where images or videos stand in a prompt.
struct Marks {
  std::string_view begin;  // "<image:"
  char kind;               // of pieces
  const char* given;       // in errors
  std::vector<bool> used;  // by index
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

// A prompt cut at its marks.
std::vector<Piece> cut_at_marks(std::string_view prompt, std::span<Marks> all) {
  std::vector<Piece> pieces;
  while (!prompt.empty()) {
    const auto found = std::ranges::find_if(all, [&](const Marks& m) { return prompt.starts_with(m.begin); });
    size_t length = 1;
    const size_t number = found == all.end() ? 0 : number_of_mark(prompt, *found, length);
    if (number > 0) {
      pieces.push_back({.kind = found->kind, .index = number - 1});
    } else {
      if (pieces.empty() || pieces.back().kind != 't') pieces.push_back({.kind = 't'});
      pieces.back().text += prompt.front();
    }
    prompt.remove_prefix(length);
  }
  return pieces;
}

// The content of a user message: texts with images and videos at their marks, the others first.
std::vector<Piece> place_media(const Question& question) {
  Marks marks[] = {{"<image:", 'i', "images", std::vector<bool>(question.images.size())},
                   {"<video:", 'v', "videos", std::vector<bool>(question.videos.size())}};
  std::vector<Piece> placed = cut_at_marks(question.prompt, marks), content;
  size_t next[] = {0, 0};
  const auto add_next = [&](size_t kind) {
    const size_t n = next[kind]++;
    if (n < marks[kind].used.size() && !marks[kind].used[n]) content.push_back({.kind = marks[kind].kind, .index = n});
  };
  for (const char kind : question.order) add_next(kind == 'v' ? 1 : 0);
  for (const size_t kind : {0, 1}) {
    while (next[kind] < marks[kind].used.size()) add_next(kind);
  }
  std::ranges::move(placed, std::back_inserter(content));
  return content;
}

// Reads the images and videos of a question into the parts of messages.
class Placing {
 public:
  Placing(const Engine& engine, const Question& question) : engine_(engine), question_(question) {}

  void place_image(size_t index, std::vector<Part>& parts) const {
    for (EncodedImage& image :
         read_images(engine_, question_.images.at(index), question_.pdf_text, question_.image_options)) {
      parts.emplace_back(ImagePart{std::move(image)});
    }
  }
  void place_video(size_t index, std::vector<Part>& parts) const {
    parts.emplace_back(VideoPart{probed_video(engine_, question_.videos.at(index), question_.image_options).input});
  }
  // Those from these on, for placeholders within a text. Throws Error(kInput) for an image that comes with a text.
  void place_rest(size_t image, size_t video, std::vector<Part>& parts) const {
    const auto has_text = [](const Part& part) { return !std::get<ImagePart>(part).image.text.empty(); };
    for (; image < question_.images.size(); ++image) {
      std::vector<Part> pages;
      place_image(image, pages);
      if (std::ranges::any_of(pages, has_text)) {
        throw Error(ErrorCode::kInput,
                    question_.images[image] + ": --pdf-text has no place in a prompt with placeholders of its own");
      }
      std::ranges::move(pages, std::back_inserter(parts));
    }
    for (; video < question_.videos.size(); ++video) place_video(video, parts);
  }

 private:
  const Engine& engine_;
  const Question& question_;
};

Prompt prepare_messages(const Engine& engine, const Question& question) {
  std::vector<Message> messages = question.messages;
  const Placing placing(engine, question);
  size_t next_image = 0, next_video = 0;
  for (Message& message : messages) {
    for (Part& part : std::exchange(message.parts, {})) {
      if (std::holds_alternative<ImagePart>(part)) {
        placing.place_image(next_image++, message.parts);
      } else if (std::holds_alternative<VideoPart>(part)) {
        placing.place_video(next_video++, message.parts);
      } else {
        message.parts.push_back(std::move(part));
      }
    }
  }
  const nlohmann::ordered_json json = template_json(messages);
  std::vector<Part> parts = take_parts(messages);
  placing.place_rest(next_image, next_video, parts);
  return prepare_chat(engine, json, take_media(std::move(parts)));
}

// What a data URI holds, where a path could stand.
std::shared_ptr<const std::vector<std::byte>> bytes_of_uri(const std::string& uri, FileKind kind) {
  return shared_bytes(decode_data_uri(uri, "a data URI", kind));
}

// Whether the name of a file, or the type of a data URI, says PDF.
bool is_called_pdf(const std::string& path) {
  std::string name = is_data_uri(path) ? path.substr(0, path.find(';')) : path;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name.ends_with(".pdf") || name.ends_with("/pdf") || name.ends_with("/x-pdf");
}

EncodedImage image_of_uri(const std::string& uri) {
  return {.bytes = bytes_of_uri(uri, is_called_pdf(uri) ? FileKind::kPdf : FileKind::kImage),
          .where = "a data URI",
          .limits = {},
          .options = {},
          .owner = "",
          .text = ""};
}

ProbedVideo probe(const VideoPath& path) {
  VideoRequest request{.video = {}, .choice = path.video.choice, .options = {}, .limits = {}, .cancelled = interrupted};
  if (path.frames.empty() && is_data_uri(path.video.path)) {
    request.video.where = "a data URI";
    request.video.clip = bytes_of_uri(path.video.path, FileKind::kVideo);
  } else if (path.frames.empty()) {
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
  const bool is_uri = is_data_uri(path);
  const PathAndPages file = is_uri ? PathAndPages{.path = path, .pages = ""} : split_pages(path);
  EncodedImage image = is_uri ? image_of_uri(path) : read_encoded_image(file.path);
  if (!clip_media_type(*image.bytes).empty()) {
    throw Error(ErrorCode::kInput, image.where + ": expected an image or a PDF, found a video; give it with -v");
  }
  image.options = options;
  if (!is_document(*image.bytes)) {
    if (!image.bytes->empty() && media_type(*image.bytes).empty() && is_called_pdf(file.path)) {
      throw Error(ErrorCode::kInput, image.where + ": expected a PDF, found " + name_other_format(*image.bytes));
    }
    if (file.path != path) {
      throw Error(ErrorCode::kInput, path + ": expected pages of a PDF alone or of a TIFF; this is an image");
    }
    std::vector<EncodedImage> images;
    images.push_back(std::move(image));
    return images;
  }
  return engine.media().read_document(
      {.document = std::move(image),
       .name = is_uri ? "" : std::filesystem::path(file.path).filename().string(),
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
  const Placing placing(engine, question);
  if (question.raw) {
    std::vector<Part> parts;
    placing.place_rest(0, 0, parts);
    return engine.prepare_raw(question.prompt, take_media(std::move(parts)));
  }
  if (!question.messages.empty()) return prepare_messages(engine, question);

  std::vector<Message> messages;
  if (!question.system.empty()) messages.push_back(text_message("system", question.system));
  Message& asked = messages.emplace_back(Message{.role = "user"});
  asked.plain = question.images.empty() && question.videos.empty();
  for (Piece& piece : place_media(question)) {
    if (piece.kind == 'i') {
      placing.place_image(piece.index, asked.parts);
    } else if (piece.kind == 'v') {
      placing.place_video(piece.index, asked.parts);
    } else {
      asked.parts.emplace_back(TextPart{std::move(piece.text)});
    }
  }
  return prepare_chat(engine, std::move(messages));
}

}  // namespace vlcache
