// AnswerForms builds the grammars that hold answers to the form that a request requires. One object per engine, for all
// endpoints.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/answer_format.h"
#include "api/thoughts.h"
#include "api/tool_calls.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "grammar/grammar.h"

namespace vlcache {

class AnswerForms {
 public:
  // generic: tools are shown to models whose template has no place for them (generic_tools.h).
  explicit AnswerForms(const Engine& engine, bool generic = true);

  struct Form {
    GrammarPtr grammar;            // null: any text
    std::vector<int32_t> opening;  // tokens before the grammar's text
    std::vector<int32_t> shown;    // special tokens that mark calls
    CallSyntax syntax = CallSyntax::kPlain;
    bool template_has_tools = false;
    ThoughtTags thoughts;                   // those that may precede the answer; none: it has none
    std::optional<int> max_thought_tokens;  // then a thought is closed
    std::string system_text;                // tools, for a template without a place for them
    std::vector<std::string> notes;         // for the client: what the grammar or the prompt leaves out
  };
  // Takes milliseconds for a new grammar, so any thread but the inference thread may call it. Throws Error(kInput or
  // kUnsupported) naming the field.
  Form form(const AnswerFormat& asked, const ToolUse& tools);
  // Lets the answer begin with a thought, as answers in conversations may; its form then begins after that.
  void allow_thought(Form& form, std::optional<int> max_tokens = std::nullopt) const;
  // Holds an answer to the form; the request must be one of those that the form was made for.
  void apply(const Form& form, Request& request) const;

 private:
  void add_calls(const AnswerFormat& format, const ToolUse& tools, Form& form);

  const Engine& engine_;
  bool generic_;
  Grammars grammars_;
  ThoughtTags thought_tags_;
};

}  // namespace vlcache
