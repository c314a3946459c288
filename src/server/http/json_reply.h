// Builds replies that are JSON, and errors in the format that OpenAI's clients expect.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/error.h"
#include "server/http/http_server.h"

namespace vlcache {

HttpResponse json_response(const nlohmann::ordered_json& json, int status = 200);

// {"error": {message, type, param, code}}; `param` is the field that the message begins with.
nlohmann::ordered_json error_json(const Error& error);
int http_status(const Error& error);
HttpResponse error_response(const Error& error);
// "2026-11-25T01:08:00Z".
std::string utc_time(int64_t seconds);
// An error that is not about the request's body.
HttpResponse refusal(int status, const std::string& message, const std::string& type, const std::string& code = "");

}  // namespace vlcache
