#include "api/messages/message.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "api/request_builder.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson text_json(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

// The members of a message as templates read it.
struct MessageJson {
  std::string text;  // of all text parts
  OrderedJson content = OrderedJson::array(), calls = OrderedJson::array();
  std::string thought;

  void operator()(const TextPart& part) {
    text += part.text;
    content.push_back(text_json(part.text));
  }
  void operator()(const ImagePart& part) {
    content.push_back({{"type", "image"}});
    if (!part.image.text.empty()) content.push_back(text_json(part.image.text));
  }
  void operator()(const VideoPart&) { content.push_back({{"type", "video"}}); }
  void operator()(const CallPart& part) {
    calls.push_back(
        {{"id", part.id}, {"type", "function"}, {"function", {{"name", part.name}, {"arguments", part.arguments}}}});
  }
  void operator()(const ThoughtPart& part) { thought += part.text; }
  void operator()(const OtherPart& part) { content.push_back(part.json); }
};

OrderedJson message_json(const Message& message) {
  MessageJson parts;
  for (const Part& part : message.parts) std::visit(parts, part);
  const bool is_text = message.plain || parts.content.empty();  // templates look for the first of a list's parts
  OrderedJson content = is_text ? OrderedJson(std::move(parts.text)) : std::move(parts.content);
  if (!message.own.is_null()) {
    OrderedJson json = message.own;
    if (!message.plain) json["content"] = std::move(content);
    return json;
  }
  OrderedJson json{{"role", message.role}, {"content", std::move(content)}};
  if (!parts.thought.empty()) json["reasoning_content"] = std::move(parts.thought);
  if (!parts.calls.empty()) json["tool_calls"] = std::move(parts.calls);
  if (message.role == "tool") json["tool_call_id"] = message.call_id;
  if (message.tool) json["name"] = *message.tool;
  return json;
}

bool is_content(const Part& part) {
  return !std::holds_alternative<CallPart>(part) && !std::holds_alternative<ThoughtPart>(part);
}

}  // namespace

bool Message::has_calls() const {
  return std::ranges::any_of(parts, [](const Part& part) { return std::holds_alternative<CallPart>(part); });
}

bool Message::has_content() const { return std::ranges::any_of(parts, is_content); }

Message text_message(std::string role, std::string text) {
  Message message{.role = std::move(role), .plain = true};
  message.parts.emplace_back(TextPart{std::move(text)});
  return message;
}

OrderedJson template_json(const std::vector<Message>& messages) {
  OrderedJson json = OrderedJson::array();
  for (const Message& message : messages) json.push_back(message_json(message));
  return json;
}

void add_system_text(std::vector<Message>& messages, const std::string& text) {
  if (messages.empty() || messages[0].role != "system") {
    messages.insert(messages.begin(), text_message("system", text));
  } else {
    messages[0].parts.emplace_back(TextPart{"\n\n" + text});
  }
}

std::vector<Part> take_parts(std::vector<Message>& messages) {
  std::vector<Part> parts;
  for (Message& message : messages) std::ranges::move(std::exchange(message.parts, {}), std::back_inserter(parts));
  return parts;
}

InputMedia take_media(std::vector<Part> parts) {
  std::vector<EncodedImage> images;
  std::vector<InputVideo> videos;
  for (Part& part : parts) {
    if (auto* image = std::get_if<ImagePart>(&part)) images.push_back(std::move(image->image));
    if (auto* video = std::get_if<VideoPart>(&part)) videos.push_back(std::move(video->video));
  }
  return {std::move(images), std::move(videos)};
}

Prompt prepare_chat(const Engine& engine, std::vector<Message> messages, const TemplateInput& more,
                    const PromptLimits& limits) {
  const OrderedJson json = template_json(messages);
  return prepare_chat(engine, json, take_media(take_parts(messages)), more, limits);
}

}  // namespace vlcache
