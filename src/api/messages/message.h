// Message: one message of a conversation, as a list of typed parts. Bodies of all endpoints, lines of `run --requests`
// and `chat` become messages; prepare_chat() alone turns them into a chat template's input.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/prompt/encoded_image.h"
#include "engine/prompt/input_media.h"
#include "io/chat/template_input.h"

namespace vlcache {

struct TextPart {
  std::string text;
};
// The bytes of an image's file, or of a PDF's page as an image. Pixels that a caller has decoded would be a second
// member. Without bytes: a place for an image.
struct ImagePart {
  EncodedImage image = {};
};
struct VideoPart {  // without `read`: a place for a video
  InputVideo video = {};
};
// Calls of tools and thoughts, of an assistant's message.
struct CallPart {
  std::string id, name;
  nlohmann::ordered_json arguments;  // an object, or its text as the client has it
};
struct ThoughtPart {
  std::string text;
};
// One that only the template knows.
struct OtherPart {
  nlohmann::ordered_json json;
};
using Part = std::variant<TextPart, ImagePart, VideoPart, CallPart, ThoughtPart, OtherPart>;

struct Message {
  std::string role;                                // system, user, assistant, or tool: the result of a call
  std::vector<Part> parts = {};                    // in the client's order
  bool plain = false;                              // templates get the text as one string, not as a list
  std::string call_id = "";                        // of a tool's message
  std::optional<std::string> tool = std::nullopt;  // likewise, its name
  // Of a line of `run --requests`: the whole object, of which the parts replace the content unless `plain` is set.
  nlohmann::ordered_json own = nullptr;

  bool has_calls() const;
  bool has_content() const;  // besides calls and thoughts; a text may be empty
};

// A message of one text.
Message text_message(std::string role, std::string text);

// As chat templates expect them: [{role, content, reasoning_content, tool_calls, ...}], an image as {"type": "image"},
// a video as {"type": "video"}.
nlohmann::ordered_json template_json(const std::vector<Message>& messages);

// Adds the text to the first system message, or puts one of its own before the others.
void add_system_text(std::vector<Message>& messages, const std::string& text);

// All parts of the messages, which have none then.
std::vector<Part> take_parts(std::vector<Message>& messages);
// The images and videos among parts.
InputMedia take_media(std::vector<Part> parts);

// Renders the messages with the chat template and takes their images and videos. Throws Error as prepare_chat of JSON
// does (api/request_builder.h).
Prompt prepare_chat(const Engine& engine, std::vector<Message> messages, const TemplateInput& more = {},
                    const PromptLimits& limits = {});

}  // namespace vlcache
