// A request as a user writes it, on the command line or as a line of JSON, and its answer as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate.h"

namespace vlcache {

struct UserRequest {
  nlohmann::ordered_json id;        // echoed; null on the command line
  std::string prompt;               // with `messages` empty
  nlohmann::ordered_json messages;  // [{role, content}], pictures as {"type": "image"}; null: use prompt
  std::vector<std::string> images;  // paths
  std::string system;               // first message, with `prompt`
  bool raw = false;
  GenerateOptions options;
};

// {id, prompt | messages, images, raw, system, max_tokens, temperature, ..}; what is missing comes from `defaults`. A
// message's part may carry its picture: {"type": "image", "image": PATH} or {"type": "image_url", "image_url": {"url":
// PATH}}. Throws Error(kInput) naming the key; unknown keys are errors, so that a typo is not silently another request.
UserRequest parse_request(std::string_view line, const UserRequest& defaults);

// Loads the pictures and tokenises. `<image:N>` in a prompt says where picture N (from 1) stands; the others stand
// before the text.
Prompt prepare(const Engine& engine, const UserRequest& request);

// The object that `run --json` prints.
nlohmann::ordered_json result_json(const GenerateResult& result);

}  // namespace vlcache
