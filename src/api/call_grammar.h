// Builds the grammars of answers: those of a response_format, and those that make a model call tools, whatever its own
// choice.
#pragma once

#include <string>
#include <vector>

#include "api/answer_format.h"
#include "api/tool_calls.h"
#include "grammar/grammar.h"

namespace vlcache {

struct CallGrammar {
  std::string opening;  // the tokenizer's own tokens, with which an answer begins
  GrammarPtr grammar;   // of what follows
  // Keywords of parameters that the grammar leaves out: "tools[0].function (name): ...".
  std::vector<std::string> notes;
};

// The texts of a format, which is not kText. Throws Error as Grammars::json_schema does, with the format's field.
GrammarPtr format_grammar(Grammars& grammars, const AnswerFormat& format);

// One call of the named function; one or, if they may be parallel, several of any function. The arguments are those
// that the function's parameters allow, or more if the function is not `strict`. Throws Error as Grammars::json_schema
// does: "tools[0].function.parameters: ...".
CallGrammar call_grammar(Grammars& grammars, CallSyntax syntax, const ToolUse& use);

// Such calls, or an answer of the format, which is not kText. Without an opening.
CallGrammar call_or_format(Grammars& grammars, CallSyntax syntax, const ToolUse& use, const AnswerFormat& format);

}  // namespace vlcache
