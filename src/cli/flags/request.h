// Reads a request as a user writes it, on the command line or as a line of JSON, and prepares its prompt.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/messages/message.h"
#include "api/request_fields.h"
#include "engine/prompt/encoded_image.h"
#include "engine/prompt/prompt.h"
#include "engine/prompt/video_input.h"

namespace vlcache {

class Checkpoint;
class Engine;

// A video by its path, or by those of its frames.
struct VideoPath {
  VideoArgument video;
  std::vector<std::string> frames;                      // images, instead of a path
  std::shared_ptr<const ProbedVideo> probed = nullptr;  // if it has been read already
};

// The question, with images and videos by their paths.
struct Question {
  std::string prompt;                  // without `messages`
  std::vector<Message> messages = {};  // images and videos without their data; empty: use prompt
  // Paths, PDFs' with their pages (report.pdf#3-7): of a prompt in the given order, of messages in the order of their
  // parts.
  std::vector<std::string> images;
  std::vector<VideoPath> videos;  // likewise
  // Of a prompt: in which order images ('i') and videos ('v') stand before the text; those beyond it: images first.
  std::string order;
  std::string system;  // first message, with `prompt`
  bool raw = false;
  std::filesystem::path folder = {};  // with the file of lines, for relative paths (resolved_path)
  bool pdf_text = false;              // the texts of pages of PDFs, too
  ImageOptions image_options{};
};

// A line of `run --requests`. The id is known as soon as the line is a JSON object, so that the error of an invalid
// request can name it.
struct RequestLine {
  nlohmann::ordered_json id;  // echoed; null without one
  std::optional<Question> question;
  RequestFields fields;
  std::string error;  // why there is no question
};

// {id, prompt | question | messages, images | image, videos, raw, system, and request fields}; missing keys come from
// `defaults` (system, raw, folder, and the fields). A question of `eval --data` is a request, too: its answers are
// ignored. A message's part may name its image: {"type": "image", "image": PATH} or {"type": "image_url",
// "image_url": {"url": PATH}}, and its video likewise, beside fps and max_frames: {"type": "video", "video": PATH, or
// [PATH, ...] for frames}. Parts without one take those of `images` and `videos` in order. Unknown keys are errors, so
// that a typo does not silently change the request.
RequestLine read_request(std::string_view line, const Question& defaults, const RequestFields& default_fields);

// The images of a file: itself, or the pages of a PDF. Throws Error.
std::vector<EncodedImage> read_images(const Engine& engine, const std::string& path, bool pdf_text,
                                      const ImageOptions& options = {});

// A video, read and probed. Says once that sound is ignored. Throws Error: for a model that takes no video, before the
// file is read.
ProbedVideo probed_video(const Engine& engine, const VideoPath& path, const ImageOptions& options);
// The videos of -v, probed: call before weights are read. Throws Error as probed_video and parse_video_argument do.
std::vector<VideoPath> probed_videos(const std::vector<std::string>& arguments, const Checkpoint& checkpoint);

// Reads the images' and videos' files and tokenises. `<image:N>` in a prompt is the position of image N (from 1), of
// all selected pages of a PDF, `<video:N>` that of video N; the others come before the text. Throws Error.
Prompt prepare(const Engine& engine, const Question& question);

}  // namespace vlcache
