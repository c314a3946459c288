// TemplateInput: what a chat template is given besides the messages.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace vlcache {

struct TemplateInput {
  const nlohmann::ordered_json* tools = nullptr;      // definitions in OpenAI's shape; null: none
  const nlohmann::ordered_json* variables = nullptr;  // an object: {"enable_thinking": false}; null: none
  bool continue_final =
      false;                // the prompt ends within the last message, an assistant's, which the answer goes on with
  bool open_answer = true;  // else the prompt ends after the last message (add_generation_prompt false)
};

}  // namespace vlcache
