// Translates the body of Anthropic's POST /v1/messages to one of POST /v1/chat/completions, so that there is one reader
// of messages, images, options and tools.
#pragma once

#include <nlohmann/json.hpp>

namespace vlcache {

// Images in tool results keep their position; thinking of earlier turns is left out. `counting`: of count_tokens,
// which generates nothing. Throws Error(kInput) whose message begins with the field's name as Anthropic has it.
nlohmann::ordered_json chat_of_messages(const nlohmann::ordered_json& body, bool counting = false);

}  // namespace vlcache
