// A request as a user writes it, on the command line or as a line of JSON, and the prompt it becomes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/request_fields.h"
#include "engine/prompt/prompt.h"

namespace vlcache {

class Engine;

// What is asked, images by their paths.
struct Question {
  std::string prompt;               // with `messages` null
  nlohmann::ordered_json messages;  // [{role, content}], pictures as {"type": "image"}; null: use prompt
  std::vector<std::string> images;  // paths: of a prompt as they were given, of messages in the order of their parts
  std::string system;               // first message, with `prompt`
  bool raw = false;
};

// What a line of `run --requests` says. The id is known as soon as the line is a JSON object, so that a request that is
// wrong can still be told by it.
struct RequestLine {
  nlohmann::ordered_json id;  // echoed; null where there is none
  std::optional<Question> question;
  RequestFields fields;
  std::string error;  // why there is no question
};

// {id, prompt | messages, images, raw, system, and request fields}; what is missing comes from `defaults` (system, raw,
// and the fields). A message's part may carry its picture: {"type": "image", "image": PATH} or {"type": "image_url",
// "image_url": {"url": PATH}}; parts that carry none take those of `images` in order. Unknown keys are errors, so that
// a typo is not silently another request.
RequestLine read_request(std::string_view line, const Question& defaults, const RequestFields& default_fields);

// Reads the pictures' files and tokenises. `<image:N>` in a prompt says where picture N (from 1) stands; the others
// stand before the text. Throws Error.
Prompt prepare(const Engine& engine, const Question& question);

}  // namespace vlcache
