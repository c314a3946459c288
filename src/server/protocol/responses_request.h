// Reads the body of OpenAI's POST /v1/responses. Nothing is stored between requests: the client sends the whole
// conversation.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "api/messages/chat_request.h"

namespace vlcache {

// What a reply needs besides the chat request: the functions that the request's tools became, what their calls are
// called, and where the answer is kept.
struct ResponsesPlan {
  std::set<std::string> names;
  std::set<std::string> custom;                                           // of one text, `input`
  std::map<std::string, std::pair<std::string, std::string>> namespaced;  // "space__name": space, name
  std::function<void(const nlohmann::ordered_json& items)> keep;          // called with the answer's; empty: not kept
};

// Tools that the server would have to run itself are left out; calls and outputs in the input, of any kind, become
// calls and results. Throws as read_chat_request does; messages begin with the field's name as Responses have it.
ChatRequest read_responses_request(const nlohmann::ordered_json& body, const RequestFields& defaults,
                                   const ChatLimits& limits, ResponsesPlan& tools);

}  // namespace vlcache
