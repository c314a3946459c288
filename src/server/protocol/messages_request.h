// The body of Anthropic's POST /v1/messages, said as one of POST /v1/chat/completions: so there is one reader of
// messages, pictures, options and tools.
#pragma once

#include <nlohmann/json.hpp>

namespace vlcache {

// Pictures in tool results stay where they are; thinking of earlier turns is left out. `counting`: of count_tokens,
// which generates nothing. Throws Error(kInput) whose message begins with the field's name as Anthropic has it.
nlohmann::ordered_json chat_of_messages(const nlohmann::ordered_json& body, bool counting = false);

}  // namespace vlcache
