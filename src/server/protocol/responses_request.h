// Translates the body of OpenAI's POST /v1/responses to one of POST /v1/chat/completions (see messages_request.h).
// Nothing is stored between requests: the client sends the whole conversation.
#pragma once

#include <nlohmann/json.hpp>

namespace vlcache {

// Reasoning of earlier turns is left out. Throws Error(kInput) whose message begins with the field's name as Responses
// have it.
nlohmann::ordered_json chat_of_responses(const nlohmann::ordered_json& body);

}  // namespace vlcache
