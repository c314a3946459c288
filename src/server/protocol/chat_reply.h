// Builds answers for OpenAI's clients: whole, or as the pieces of a stream.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/messages/chat_request.h"
#include "api/tool_calls.h"
#include "engine/request.h"

namespace vlcache {

class Tokenizer;

// What all pieces of an answer have in common.
struct AnswerHead {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;                      // seconds since 1970
  int32_t n_prompt = 0;                     // tokens; for styles that report them first
  std::vector<int32_t> prompt_tokens = {};  // where the request asks for token ids
};

// prompt_tokens, completion_tokens (of all answers), total_tokens, prompt_tokens_details.cached_tokens: those that were
// not computed.
nlohmann::ordered_json usage_json(std::span<const GenerateResult> results);
// Of an answer so far, in an event of its stream.
nlohmann::ordered_json running_usage_json(int64_t n_prompt, int64_t n_completion);
// Adds to an event: prompt_progress, llama.cpp's, in tokens; vlcache_progress: of all the work before the first token,
// {share, seconds_left if it is known, waiting if so}.
void add_progress(nlohmann::ordered_json& event, const PromptProgress& progress);
// The thought before an answer and the calls in its text; the rest is its content.
struct AnswerText {
  std::string thought, content;
  std::vector<ToolCall> calls;
};
AnswerText read_answer(const ChatRequest& asked, const std::string& text);
// How many of an answer's tokens belong to its thought.
int64_t count_thought_tokens(const ChatRequest& asked, std::span<const GeneratedToken> tokens,
                             const Tokenizer& tokenizer);
// "tool_calls" for a complete answer that has some.
std::string finish_reason(const GenerateResult& result, bool has_calls);
// {id, type, function: {name, arguments}}, each with an id of its own; numbered from `first` on for a stream, if >= 0.
nlohmann::ordered_json tool_calls_json(std::span<const ToolCall> calls, int first = -1);
nlohmann::ordered_json chat_json(const AnswerHead& head, const ChatRequest& asked,
                                 std::span<const GenerateResult> results, const Tokenizer& tokenizer);
// {content: [{token, logprob, bytes, top_logprobs}], refusal}
nlohmann::ordered_json logprobs_json(std::span<const GeneratedToken> tokens, const Tokenizer& tokenizer);
// [ids], as vLLM's token_ids.
nlohmann::ordered_json token_ids_json(std::span<const GeneratedToken> tokens);
// A `data:` line of a stream.
std::string event(const nlohmann::ordered_json& json);
nlohmann::ordered_json chunk_json(const AnswerHead& head, int index, nlohmann::ordered_json delta,
                                  const std::string& finish_reason);

}  // namespace vlcache
