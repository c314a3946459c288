// Answers small routes of other servers: vLLM's /tokenize and /detokenize, llama.cpp's /props.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "io/tokenizer/encode_limits.h"

namespace vlcache {

// {"prompt": TEXT, "add_special_tokens": true, "return_token_strs": false} or {"messages": [...]}: {count,
// max_model_len, tokens, token_strs}. `of_messages`: the tokens of a chat completion's body. Throws Error(kInput).
nlohmann::ordered_json tokenize_json(
    const Engine& engine, std::string_view body,
    const std::function<std::vector<int32_t>(nlohmann::ordered_json body)>& of_messages,
    const EncodeLimits& limits = {});
// {"tokens": [...]}: {prompt}. Throws Error(kInput).
nlohmann::ordered_json detokenize_json(const Engine& engine, std::string_view body);
// What the server is, and the defaults of its requests.
nlohmann::ordered_json props_json(const Engine& engine, const std::string& model_name, const GenerateOptions& defaults,
                                  int n_parallel);

}  // namespace vlcache
