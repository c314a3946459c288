// Calls in the text of each syntax.
#include "api/call_grammar.h"

#include <optional>
#include <utility>

#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Words {
  std::string before;  // a space at its beginning may be left out
  std::string between, after;
  std::string name, arguments, end;  // before the two and after them, in each call
  std::optional<int32_t> id;         // rule of the text between the name and `arguments`
  int most = 8;                      // calls in one answer: without a limit, a model may not come to an end
};

// Nine letters or digits after their mark, as Mistral's templates require.
int32_t id_rule(Automaton& a, const std::string& mark) {
  const int32_t rule = a.add_rule();
  int32_t at = a.text(a.start(rule), mark);
  for (int i = 0; i < 9; ++i) {
    const int32_t next = a.add_state();
    for (const auto& [low, high] : {std::pair{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}) {
      a.bytes(at, static_cast<uint8_t>(low), static_cast<uint8_t>(high), next);
    }
    at = next;
  }
  a.end(at);
  return rule;
}

// In the tokenizer's own tokens.
std::string opening_of(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::kHermes:
      return "<tool_call>\n";
    case CallSyntax::kMistral:
    case CallSyntax::kMistralNamed:
    case CallSyntax::kMistralWithId:
      return "[TOOL_CALLS]";
    case CallSyntax::kLlama:
    case CallSyntax::kPlain:
      break;
  }
  return "";
}

Words words_of(CallSyntax syntax, const Grammars& grammars, Automaton& a) {
  Words words{.between = ", ", .name = "{\"name\": \"", .arguments = "\", \"arguments\": ", .end = "}"};
  switch (syntax) {
    case CallSyntax::kHermes:
      words.between = "\n</tool_call>\n<tool_call>\n";
      words.after = "\n</tool_call>";
      break;
    case CallSyntax::kMistral:
      words.before = " [";
      words.after = "]";
      break;
    case CallSyntax::kMistralNamed:
    case CallSyntax::kMistralWithId:
      words.between = grammars.mark("[TOOL_CALLS]");
      words.name = words.end = "";
      words.arguments = grammars.mark("[ARGS]");
      if (syntax == CallSyntax::kMistralWithId) words.id = id_rule(a, grammars.mark("[CALL_ID]"));
      break;
    case CallSyntax::kLlama:
      words.most = 1;  // the templates of its authors refuse messages with several
      words.arguments = "\", \"parameters\": ";
      break;
    case CallSyntax::kPlain:
      words.before = "[";
      words.after = "]";
      break;
  }
  return words;
}

// Of any function that may be called.
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
  const int32_t name_begins = a.text(a.start(rule), words.name);
  for (const auto& [name, parameters] : functions) {
    int32_t at = a.text(name_begins, name);
    if (words.id) {
      const int32_t after_id = a.add_state();
      a.call(at, *words.id, after_id);
      at = after_id;
    }
    const int32_t after = a.add_state();
    a.call(a.text(at, words.arguments), parameters, after);
    a.skip(a.text(after, words.end), end);
  }
  return rule;
}

int32_t all_calls(Automaton& a, const Words& words, const ToolUse& use) {
  const int32_t call = one_call(a, words, use), rule = a.add_rule(), end = a.add_state();
  a.end(end);
  const int n = use.choice == ToolUse::Choice::kRequired && use.parallel ? words.most : 1;
  int32_t at = a.start(rule);
  if (words.before.starts_with(' ')) {
    const int32_t spaced = a.text(at, " ");
    a.skip(at, spaced);
    at = spaced;
  }
  at = a.text(at, words.before.substr(words.before.starts_with(' ') ? 1 : 0));
  for (int i = 0; i < n; ++i) {
    const int32_t after = a.add_state();
    a.call(at, call, after);
    const int32_t closed = a.text(after, words.after);
    a.skip(closed, end);
    if (i + 1 < n) at = a.text(after, words.between);
  }
  return rule;
}

}  // namespace

CallGrammar call_grammar(Grammars& grammars, CallSyntax syntax, const ToolUse& use) {
  const std::string name = "calls " + std::to_string(static_cast<int>(syntax)) + (use.parallel ? " many " : " one ") +
                           use.named + " " + use.tools.dump();
  return {opening_of(syntax), grammars.compile(name, [&](Automaton& automaton) {
            return all_calls(automaton, words_of(syntax, grammars, automaton), use);
          })};
}

}  // namespace vlcache
