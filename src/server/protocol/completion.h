// CompletionRequest: the body of POST /v1/completions, the older endpoint for plain text or tokens, without messages
// and chat template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/messages/chat_request.h"
#include "server/protocol/answer_style.h"
#include "server/protocol/prompt_scores.h"

namespace vlcache {

struct CompletionRequest {
  struct Text {
    std::string text;             // or
    std::vector<int32_t> tokens;  // where these are not empty
  };
  std::vector<Text> prompts;
  ChatRequest fields;              // all but messages; each prompt has fields.n answers
  bool echo = false;               // the answers begin with their prompts
  bool add_special_tokens = true;  // to prompts of text, as the tokenizer does
  // Alternatives of each of the prompt's tokens; none: the prompt's log probabilities are not asked for.
  std::optional<int32_t> n_prompt_logprobs;

  size_t n_answers() const { return prompts.size() * static_cast<size_t>(fields.n()); }
};

// Throws Error(kInput) whose message begins with the field's name.
CompletionRequest read_completion_request(std::string_view body, const RequestFields& defaults,
                                          const ChatLimits& limits);

// A prompt as the model sees it: for answers that repeat it or judge its tokens.
struct CompletionPrompt {
  std::vector<int32_t> tokens;
  std::string text;                      // of the tokens, without special ones unless the request shows them
  std::shared_ptr<PromptScores> scores;  // null: not asked for
};

// The token of a prompt from which on it is scored as an answer would be, after the policy has acted on what comes
// before: as `score_from` and `score_after` have it, at least 1. nullopt: all of it is scored as a prompt. Throws
// Error(kInput) if `score_after` is not in the prompt.
std::optional<size_t> first_scored(const CompletionPrompt& prompt, const RequestFields& fields,
                                   const Tokenizer& tokenizer);
// Answer i is the (i % n)-th of prompt i / n.
std::unique_ptr<AnswerStyle> make_completion_style(const AnswerHead& head, const CompletionRequest& asked,
                                                   std::vector<CompletionPrompt> prompts, const Tokenizer& tokenizer);

}  // namespace vlcache
