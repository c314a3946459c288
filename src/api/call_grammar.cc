// Calls in the text of each syntax.
#include "api/call_grammar.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"
#include "grammar/text_rules.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Words {
  std::string before;  // a space at its beginning may be left out
  std::string between, after;
  std::string name, arguments, end;  // before the two and after them, in each call
  std::optional<int32_t> id;         // rule of the text between the name and `arguments`
  bool xml = false;                  // arguments as kQwenXml has them
  bool pythonic = false;             // as kPythonic has them
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
    case CallSyntax::kQwenXml:
    case CallSyntax::kHermes:
      return "<tool_call>\n";
    case CallSyntax::kMistral:
    case CallSyntax::kMistralNamed:
    case CallSyntax::kMistralWithId:
      return "[TOOL_CALLS]";
    case CallSyntax::kLlama:
    case CallSyntax::kPythonic:
    case CallSyntax::kPlain:
      break;
  }
  return "";
}

Words words_of(CallSyntax syntax, const Grammars& grammars, Automaton& a) {
  Words words{.between = ", ", .name = "{\"name\": \"", .arguments = "\", \"arguments\": ", .end = "}"};
  switch (syntax) {
    case CallSyntax::kQwenXml:
      words.xml = true;
      words.name = "<function=";
      words.arguments = ">\n";
      words.end = "</function>";
      [[fallthrough]];
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
    case CallSyntax::kPythonic:
      words.pythonic = true;
      words.name = "";
      words.arguments = "(";
      words.end = ")";
      [[fallthrough]];
    case CallSyntax::kPlain:
      words.before = "[";
      words.after = "]";
      break;
  }
  return words;
}

// Text of at least a character in which "\n</parameter>" does not stand.
int32_t free_text(Automaton& a) {
  constexpr std::string_view kEnd = "\n</parameter>";
  const int32_t rule = a.add_rule(), end = a.add_state();
  a.end(end);
  // A state for each beginning of it; any other character leads back. None at first, where the text may not end.
  std::vector<int32_t> states;
  for (size_t i = 0; i < kEnd.size(); ++i) states.push_back(a.add_state());
  const auto edges = [&](int32_t from, size_t i) {
    for (int c = '\t'; c < 0x80; ++c) {
      const bool is_next = c == kEnd[i];
      if ((c < 0x20 && c != '\n' && c != '\t') || (is_next && i + 1 == kEnd.size())) continue;
      const auto byte = static_cast<uint8_t>(c);
      a.bytes(from, byte, byte, is_next ? states[i + 1] : states[c == kEnd[0] ? 1 : 0]);
    }
    json_long_character(a, from, states[0]);
  };
  edges(a.start(rule), 0);
  for (size_t i = 0; i < kEnd.size(); ++i) {
    edges(states[i], i);
    a.skip(states[i], end);
  }
  return rule;
}

// A parameter that is written by itself: as <parameter=name> and its value, or as name=value.
struct NamedParameter {
  std::string name;
  int32_t rule;                      // of the value
  std::vector<std::string> choices;  // instead, if it is one of these texts
  bool may_be_empty, required;
};

// Those that a function names, in order. `xml`: strings stand as they are.
std::vector<NamedParameter> named_parameters(Automaton& a, const OrderedJson& parameters, const std::string& where,
                                             const SchemaOptions& options, bool xml) {
  std::vector<NamedParameter> out;
  std::vector<SchemaNote> noted_below;
  const SchemaOptions checking{.widened = options.widened == nullptr ? nullptr : &noted_below, .closed = true};
  add_schema(a, parameters, where, checking);  // for its errors
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return out;
  const std::set<std::string> needed = required_names(parameters);
  const int32_t text = xml ? free_text(a) : 0;
  std::vector<const OrderedJson*> with_rules;
  for (const auto& [name, property] : properties->items()) {
    NamedParameter& p = out.emplace_back();
    p.name = name;
    p.required = needed.contains(name);
    p.may_be_empty = xml && is_string_schema(property);
    p.rule = text;
    if (!xml && property == OrderedJson{{"type", "boolean"}}) p.choices = {"True", "False"};
    if (p.may_be_empty && property.contains("enum") && property["enum"].is_array()) {
      for (const OrderedJson& v : property["enum"]) {
        if (v.is_string() && !v.get_ref<const std::string&>().empty()) p.choices.push_back(v);
      }
    }
    if (!p.may_be_empty) with_rules.push_back(&property);
  }
  const std::vector<int32_t> rules = add_schemas_within(a, parameters, with_rules, where, options);
  for (size_t i = 0, next = 0; i < out.size(); ++i) {
    if (!out[i].may_be_empty) out[i].rule = rules[next++];
  }
  return out;
}

// Connects two states by the parameters: name=value, with commas between them. Values are JSON, which Python has as
// well, except for the words true, false and null.
void add_pythonic(Automaton& a, const std::vector<NamedParameter>& parameters, int32_t from, int32_t to) {
  int32_t first = from, later = a.add_state();  // before the first argument and after one
  for (const NamedParameter& p : parameters) {
    const int32_t name = a.add_state(), end = a.add_state();
    a.skip(first, name);
    a.text(later, ", ", name);
    const int32_t value = a.text(name, p.name + "=");
    for (const std::string& choice : p.choices) a.text(value, choice, end);
    if (p.choices.empty()) a.call(value, p.rule, end);
    const int32_t next_first = a.add_state();
    if (!p.required) a.skip(first, next_first);
    if (!p.required) a.skip(later, end);
    first = next_first;
    later = end;
  }
  a.skip(first, to);
  a.skip(later, to);
}

// Connects two states by the parameters.
void add_xml(Automaton& a, const std::vector<NamedParameter>& parameters, int32_t from, int32_t to) {
  for (const NamedParameter& p : parameters) {
    const int32_t after = a.add_state(), value = a.text(from, "<parameter=" + p.name + ">\n"), end = a.add_state();
    a.text(end, "\n</parameter>\n", after);
    for (const std::string& choice : p.choices) a.text(value, choice, end);
    if (p.choices.empty()) a.call(value, p.rule, end);
    if (p.choices.empty() && p.may_be_empty) a.skip(value, end);
    if (!p.required) a.skip(from, after);
    from = after;
  }
  a.skip(from, to);
}

// Of any function that may be called.
int32_t one_call(Automaton& a, const Words& words, const ToolUse& use, std::vector<std::string>& notes) {
  struct Function {
    std::string name;
    int32_t parameters;                 // the rule of their JSON
    std::vector<NamedParameter> named;  // instead, in kQwenXml and kPythonic
  };
  std::vector<Function> functions;
  for (const OrderedJson& tool : use.tools) {
    const OrderedJson& function = tool["function"];
    const auto name = function["name"].get<std::string>();
    if (use.choice == ToolUse::Choice::kNamed && name != use.named) continue;
    const ToolUse::Place& place = use.places.at(name);
    std::vector<SchemaNote> widened;
    const SchemaOptions options{.widened = use.strict.contains(name) ? nullptr : &widened, .closed = true};
    if (words.xml || words.pythonic) {
      functions.push_back({name, 0, named_parameters(a, function["parameters"], place.schema, options, words.xml)});
    } else {
      functions.push_back({name, add_schema(a, function["parameters"], place.schema, options), {}});
    }
    for (const SchemaNote& note : widened) {
      notes.push_back(place.function + " (" + name + "): \"" + note.keyword + "\" at " + note.place +
                      " is not held in calls: " + note.why);
    }
  }
  const int32_t rule = a.add_rule(), end = a.add_state();
  a.end(end);
  const int32_t name_begins = a.text(a.start(rule), words.name);
  for (const auto& [name, parameters, named] : functions) {
    const std::string text = OrderedJson(name).dump();
    int32_t at = a.text(name_begins, words.name.empty() || words.xml ? name : text.substr(1, text.size() - 2));
    if (words.id) {
      const int32_t after_id = a.add_state();
      a.call(at, *words.id, after_id);
      at = after_id;
    }
    const int32_t after = a.add_state();
    at = a.text(at, words.arguments);
    if (words.xml) {
      add_xml(a, named, at, after);
    } else if (words.pythonic) {
      add_pythonic(a, named, at, after);
    } else {
      a.call(at, parameters, after);
    }
    a.skip(a.text(after, words.end), end);
  }
  return rule;
}

int32_t all_calls(Automaton& a, const Words& words, const ToolUse& use, std::vector<std::string>& notes) {
  const int32_t call = one_call(a, words, use, notes), rule = a.add_rule(), end = a.add_state();
  a.end(end);
  const int n = use.choice != ToolUse::Choice::kNamed && use.parallel ? words.most : 1;
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

// The texts of a format.
TextRule add_format(Automaton& a, const AnswerFormat& format) {
  switch (format.kind) {
    case AnswerFormat::Kind::kText:
      break;
    case AnswerFormat::Kind::kJsonObject:
      return {.rule = kJsonObject};
    case AnswerFormat::Kind::kJsonSchema:
      return {.rule = add_schema(a, format.schema, format.field)};
    case AnswerFormat::Kind::kChoice:
      return add_choice(a, format.choices);
    case AnswerFormat::Kind::kRegex:
      return add_regex(a, format.text, format.field);
    case AnswerFormat::Kind::kGrammar:
      return add_gbnf(a, format.text, format.field);
  }
  CHECK(false);
}

std::string name_of(const AnswerFormat& format) {
  return std::to_string(static_cast<int>(format.kind)) + " " + format.schema.dump() +
         OrderedJson(format.choices).dump() + format.text;
}

// Under which its grammar is kept.
std::string name_of(CallSyntax syntax, const ToolUse& use) {
  std::string strict, places;  // which notes name
  for (const std::string& name : use.strict) strict += name + " ";
  for (const auto& [name, place] : use.places) places += " " + place.schema;
  return std::to_string(static_cast<int>(syntax)) + (use.parallel ? " many " : " one ") + use.named + " " + strict +
         use.tools.dump() + places;
}

}  // namespace

GrammarPtr format_grammar(Grammars& grammars, const AnswerFormat& format) {
  if (format.kind == AnswerFormat::Kind::kJsonObject) return grammars.json_object();
  if (format.kind == AnswerFormat::Kind::kJsonSchema) {
    return grammars.json_schema(format.schema, format.field);
  }
  return grammars.compile("format " + name_of(format), [&](Automaton& a) {
    const TextRule texts = add_format(a, format);
    const int32_t rule = a.add_rule(), end = a.add_state();
    a.end(end);
    texts.connect(a, a.start(rule), end);
    return rule;
  });
}

CallGrammar call_grammar(Grammars& grammars, CallSyntax syntax, const ToolUse& use) {
  CallGrammar out{.opening = opening_of(syntax), .grammar = nullptr, .notes = {}};
  out.grammar = grammars.compile(
      "calls " + name_of(syntax, use),
      [&](Automaton& a) { return all_calls(a, words_of(syntax, grammars, a), use, out.notes); }, &out.notes);
  return out;
}

CallGrammar call_or_format(Grammars& grammars, CallSyntax syntax, const ToolUse& use, const AnswerFormat& format) {
  CallGrammar out;
  out.grammar = grammars.compile(
      "calls or " + name_of(format) + " " + name_of(syntax, use),
      [&](Automaton& a) {
        const TextRule texts = add_format(a, format);
        const int32_t calls = all_calls(a, words_of(syntax, grammars, a), use, out.notes);
        const int32_t rule = a.add_rule(), end = a.add_state();
        a.end(end);
        texts.connect(a, a.start(rule), end);
        const std::string mark = opening_of(syntax);  // as its tokens: a mark and perhaps a line's end
        const size_t n_mark = std::min(mark.find('\n'), mark.size());
        const int32_t open = n_mark == 0 ? a.add_state() : a.text(a.start(rule), grammars.mark(mark.substr(0, n_mark)));
        if (n_mark == 0) a.skip(a.start(rule), open);
        a.call(a.text(open, mark.substr(n_mark)), calls, end);
        return rule;
      },
      &out.notes);
  return out;
}

}  // namespace vlcache
