// Builds errors in the format that Anthropic's clients expect.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/http/http_server.h"

namespace vlcache {

// {type: "error", error: {type, message}}.
nlohmann::ordered_json messages_error_json(int status, const std::string& message);

// Wraps a reply so that errors in OpenAI's format, whatever their origin, are sent in this one.
HttpReplyPtr with_messages_errors(HttpReplyPtr reply);

}  // namespace vlcache
