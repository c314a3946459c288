// Reads the body of Anthropic's POST /v1/messages.
#pragma once

#include <nlohmann/json.hpp>

#include "api/messages/chat_request.h"

namespace vlcache {

// Images in tool results keep their position. `counting`: of count_tokens, which generates nothing. Throws as
// read_chat_request does; messages begin with the field's name as Anthropic has it.
ChatRequest read_messages_request(const nlohmann::ordered_json& body, const RequestFields& defaults,
                                  const ChatLimits& limits, bool counting = false);

}  // namespace vlcache
