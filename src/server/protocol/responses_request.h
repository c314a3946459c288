// The body of OpenAI's POST /v1/responses, said as one of POST /v1/chat/completions (see messages_request.h). Nothing
// is remembered between requests: whoever goes on sends what was said before.
#pragma once

#include <nlohmann/json.hpp>

namespace vlcache {

// Reasoning of earlier turns is left out. Throws Error(kInput) whose message begins with the field's name as Responses
// have it.
nlohmann::ordered_json chat_of_responses(const nlohmann::ordered_json& body);

}  // namespace vlcache
