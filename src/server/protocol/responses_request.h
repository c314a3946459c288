// Translates the body of OpenAI's POST /v1/responses to one of POST /v1/chat/completions (see messages_request.h).
// Nothing is stored between requests: the client sends the whole conversation.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

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
// calls and results. Throws Error(kInput) whose message begins with the field's name as Responses have it.
nlohmann::ordered_json chat_of_responses(const nlohmann::ordered_json& body, ResponsesPlan& tools);

}  // namespace vlcache
