#include "io/chat/thought_forms.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace vlcache {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

bool is_assistant(const OrderedJson& message) { return text_in(message, "role") == "assistant"; }

// The text at the beginning of a content; null: there is none.
std::string* first_text(OrderedJson& message) {
  const auto content = message.find("content");
  if (content == message.end()) return nullptr;
  if (content->is_string()) return &content->get_ref<std::string&>();
  if (!content->is_array() || content->empty() || !content->front().is_object()) return nullptr;
  const auto text = content->front().find("text");
  return text != content->front().end() && text->is_string() ? &text->get_ref<std::string&>() : nullptr;
}

std::string_view trimmed_blank(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

}  // namespace

void split_off_thoughts(OrderedJson& messages, const ThoughtTags& tags) {
  if (!tags.any() || !messages.is_array()) return;
  for (OrderedJson& message : messages) {
    if (!is_assistant(message)) continue;
    std::string* text = first_text(message);
    const size_t close = text == nullptr ? std::string::npos : text->find(tags.close);
    if (close == std::string::npos) continue;
    std::string_view thought = trimmed_blank(std::string_view(*text).substr(0, close));
    // A text before the opening tag means that the tags are a part of what is said.
    if (thought.starts_with(tags.open)) thought.remove_prefix(tags.open.size());
    if (thought.find(tags.open) != thought.npos) continue;
    const std::string reasoning(trimmed_blank(thought));
    std::string rest = text->substr(close + tags.close.size());
    rest.erase(0, std::min(rest.find_first_not_of(kBlank), rest.size()));
    *text = std::move(rest);
    if (!message.contains("reasoning_content") && !reasoning.empty()) message["reasoning_content"] = reasoning;
  }
}

void put_back_thoughts(OrderedJson& messages, const ThoughtTags& tags) {
  for (OrderedJson& message : messages) {
    if (!is_assistant(message) || !message.contains("reasoning_content")) continue;
    const std::string thought = message["reasoning_content"].get<std::string>();
    message.erase("reasoning_content");
    const std::string before = tags.open + "\n" + thought + "\n" + tags.close + "\n\n";
    if (std::string* text = first_text(message); text != nullptr) {
      text->insert(0, before);
    } else if (message.contains("content") && message["content"].is_array()) {
      message["content"].insert(message["content"].begin(), {{"type", "text"}, {"text", before}});
    } else {
      message["content"] = before;
    }
  }
}

}  // namespace vlcache
