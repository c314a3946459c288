// Finds checkpoints that answer in special tokens, and makes the text of an answer as requests show it by default.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace vlcache {

class Engine;
class Tokenizer;
struct ModelConfig;

// The special tokens of this vocabulary that Family::answer_tokens lists. Empty for most checkpoints, whose answers
// leave special tokens out; the others answer in such tokens, and show them unless a request asks for something else.
std::vector<std::string> answer_tokens(const ModelConfig& config, const Tokenizer& tokenizer);
// Empty, too, without a tokenizer.
std::vector<std::string> answer_tokens(const Engine& engine);
// "<doctag>, <otsl>, <loc_0>"; "" for most checkpoints.
std::string answer_token_list(std::span<const std::string> tokens);

// The text of a whole answer, with special tokens if the checkpoint answers in them, except the ends of turns.
std::string answer_text(const Engine& engine, std::span<const int32_t> tokens);

}  // namespace vlcache
