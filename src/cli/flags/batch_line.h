// Reads a line of OpenAI's batches: {custom_id, method, url, body}, the body of one of the server's endpoints.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace vlcache {

struct BatchLine {
  nlohmann::ordered_json custom_id;  // as the line has it; null without one
  std::string endpoint;              // "chat/completions", "completions", "messages" or "responses"
  nlohmann::ordered_json body;       // an object
  std::string error;                 // why there is no body
};

// nullopt: the line is none of a batch, as it has neither custom_id nor a body. Errors are in the line; they begin with
// the key's name.
std::optional<BatchLine> read_batch_line(std::string_view text);

}  // namespace vlcache
