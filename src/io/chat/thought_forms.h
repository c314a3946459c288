// How a model marks its thoughts in an answer, and where a chat template expects those of earlier answers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "io/chat/chat_template.h"

namespace vlcache {

struct ThoughtTags {
  std::string open, close;  // "<think>", "</think>"; both empty: the model does not think

  bool any() const { return !close.empty(); }
};

// The tags that the template or, if it names none, the vocabulary knows.
template <typename HasToken>  // bool(std::string_view text): the vocabulary has this token
ThoughtTags find_thought_tags(const std::string& chat_template, HasToken has_token);
// All that are known.
inline constexpr struct {
  const char *open, *close;
} kThoughtTags[] = {{"<think>", "</think>"},
                    {"[THINK]", "[/THINK]"},
                    {"<seed:think>", "</seed:think>"},
                    {"<|START_THINKING|>", "<|END_THINKING|>"}};

template <typename HasToken>
ThoughtTags find_thought_tags(const std::string& chat_template, HasToken has_token) {
  for (const auto& tags : kThoughtTags) {
    const auto names = [&](const char* tag) { return chat_template.find(tag) != std::string::npos; };
    if (names(tags.open) || names(tags.close)) return {tags.open, tags.close};
  }
  for (const auto& tags : kThoughtTags) {
    if (has_token(tags.open) && has_token(tags.close)) return {tags.open, tags.close};
  }
  return {};
}

// Moves thoughts at the beginning of assistants' texts into `reasoning_content`, unless a message has one.
void split_off_thoughts(OrderedJson& messages, const ThoughtTags& tags);
// The reverse, for templates that show thoughts as a part of the text; the tags are added as they are.
void put_back_thoughts(OrderedJson& messages, const ThoughtTags& tags);

}  // namespace vlcache
