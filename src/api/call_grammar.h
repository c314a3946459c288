// A grammar that has a model call tools, whatever it would rather do.
#pragma once

#include <string>

#include "api/answer_format.h"
#include "api/tool_calls.h"
#include "grammar/grammar.h"

namespace vlcache {

struct CallGrammar {
  std::string opening;  // what an answer begins with, the tokenizer's tokens of it
  GrammarPtr grammar;   // of what follows
};

// One call of the named function; one or, if they may be parallel, several of any. Their arguments are what the
// function's parameters allow. Throws Error as Grammars::json_schema does: "tools[0].function.parameters: ...".
CallGrammar call_grammar(Grammars& grammars, CallSyntax syntax, const ToolUse& use);

}  // namespace vlcache
