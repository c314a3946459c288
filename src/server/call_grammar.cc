// Calls in the words of each syntax.
#include "server/call_grammar.h"

#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kMaxCalls = 8;  // of one answer: a model that has begun may not find an end

struct Words {
  std::string_view opening;  // that the tokenizer knows
  std::string_view before;   // a space at its beginning may be left out
  std::string_view between, behind, arguments;
};

Words words_of(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::kHermes:
      return {"<tool_call>\n", "", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", "arguments"};
    case CallSyntax::kMistral:
      return {"[TOOL_CALLS]", " [", ", ", "]", "arguments"};
    case CallSyntax::kLlama:
      return {"", "", "; ", "", "parameters"};
    case CallSyntax::kPlain:
      break;
  }
  return {"", "[", ", ", "]", "arguments"};
}

// {"name": "...", "arguments": {...}} of any function that may be called.
int32_t one_call(Automaton& a, const Words& words, const ToolUse& use) {
  std::vector<std::pair<std::string, int32_t>> functions;
  for (size_t i = 0; i < use.tools.size(); ++i) {
    const OrderedJson& function = use.tools[i]["function"];
    const auto name = function["name"].get<std::string>();
    if (use.choice == ToolUse::Choice::kNamed && name != use.named) continue;
    const std::string where = "tools[" + std::to_string(i) + "].function.parameters";
    functions.emplace_back(name, add_schema(a, function["parameters"], where));
  }
  const int32_t rule = a.add_rule(), end = a.add_state();
  a.end(end);
  const int32_t name_begins = a.text(a.start(rule), "{\"name\": \"");
  for (const auto& [name, parameters] : functions) {
    const std::string between = "\", \"" + std::string(words.arguments) + "\": ";
    const int32_t behind = a.add_state();
    a.call(a.text(name_begins, name + between), parameters, behind);
    a.text(behind, "}", end);
  }
  return rule;
}

int32_t all_calls(Automaton& a, const Words& words, const ToolUse& use) {
  const int32_t call = one_call(a, words, use), rule = a.add_rule(), end = a.add_state();
  a.end(end);
  const int n = use.choice == ToolUse::Choice::kRequired && use.parallel ? kMaxCalls : 1;
  int32_t at = a.start(rule);
  if (words.before.starts_with(' ')) {
    const int32_t spaced = a.text(at, " ");
    a.skip(at, spaced);
    at = spaced;
  }
  at = a.text(at, words.before.substr(words.before.starts_with(' ') ? 1 : 0));
  for (int i = 0; i < n; ++i) {
    const int32_t behind = a.add_state();
    a.call(at, call, behind);
    const int32_t closed = a.text(behind, words.behind);
    a.skip(closed, end);
    if (i + 1 < n) at = a.text(behind, words.between);
  }
  return rule;
}

}  // namespace

CallGrammar call_grammar(Grammars& grammars, CallSyntax syntax, const ToolUse& use) {
  const Words words = words_of(syntax);
  const std::string name = "calls " + std::to_string(static_cast<int>(syntax)) + (use.parallel ? " many " : " one ") +
                           use.named + " " + use.tools.dump();
  return {std::string(words.opening),
          grammars.compile(name, [&](Automaton& automaton) { return all_calls(automaton, words, use); })};
}

}  // namespace vlcache
