// Reads a request as a user writes it, on the command line or as a line of JSON, and prepares its prompt.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/request_fields.h"
#include "engine/prompt/encoded_image.h"
#include "engine/prompt/prompt.h"

namespace vlcache {

class Engine;

// The question, with images by their paths.
struct Question {
  std::string prompt;               // with `messages` null
  nlohmann::ordered_json messages;  // [{role, content}], images as {"type": "image"}; null: use prompt
  // Paths, PDFs' with their pages (report.pdf#3-7): of a prompt in the given order, of messages in the order of their
  // parts.
  std::vector<std::string> images;
  std::string system;  // first message, with `prompt`
  bool raw = false;
  bool pdf_text = false;  // the texts of pages of PDFs, too
};

// A line of `run --requests`. The id is known as soon as the line is a JSON object, so that the error of an invalid
// request can name it.
struct RequestLine {
  nlohmann::ordered_json id;  // echoed; null without one
  std::optional<Question> question;
  RequestFields fields;
  std::string error;  // why there is no question
};

// {id, prompt | messages, images, raw, system, and request fields}; missing keys come from `defaults` (system, raw, and
// the fields). A message's part may name its image: {"type": "image", "image": PATH} or {"type": "image_url",
// "image_url": {"url": PATH}}; parts without one take those of `images` in order. Unknown keys are errors, so that a
// typo does not silently change the request.
RequestLine read_request(std::string_view line, const Question& defaults, const RequestFields& default_fields);

// The images of a file: itself, or the pages of a PDF. Throws Error.
std::vector<EncodedImage> read_images(const Engine& engine, const std::string& path, bool pdf_text);

// Reads the images' files and tokenises. `<image:N>` in a prompt is the position of image N (from 1), of all selected
// pages of a PDF; the other images come before the text. Throws Error.
Prompt prepare(const Engine& engine, const Question& question);

}  // namespace vlcache
