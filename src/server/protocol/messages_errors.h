// Errors as Anthropic's clients expect them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/http/http_server.h"

namespace vlcache {

// {type: "error", error: {type, message}}.
nlohmann::ordered_json messages_error_json(int status, const std::string& message);

// The same reply, but that errors in OpenAI's shape, whoever sends them, take this one.
HttpReplyPtr with_messages_errors(HttpReplyPtr reply);

}  // namespace vlcache
