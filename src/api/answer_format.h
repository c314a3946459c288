// Reads the form that a request requires of its answer: response_format, tools and tool_choice, as OpenAI describes
// them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace vlcache {

// response_format: any text, any JSON object, what a schema allows, one of several texts, what an expression matches,
// or a text of a grammar.
struct AnswerFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema, kChoice, kRegex, kGrammar };
  Kind kind = Kind::kText;
  nlohmann::ordered_json schema;     // of kJsonSchema
  std::vector<std::string> choices;  // of kChoice
  std::string text;                  // of kRegex and kGrammar (GBNF)
  std::string field;                 // that errors about these three name

  // Errors about the schema begin with this.
  static constexpr const char* kSchemaField = "response_format.json_schema.schema";
};

// Of a response_format; null: any text. Besides OpenAI's types it takes {"type": "choice", "choice": [...]}, {"type":
// "regex", "regex": "..."} and {"type": "grammar", "grammar": "..."}; `field` in these: the name of the field in the
// body that was translated to it. Throws Error(kInput): "response_format...: ...".
AnswerFormat read_answer_format(const nlohmann::ordered_json& asked);

struct ToolUse {
  enum class Choice {
    kNone,      // none may be called
    kAuto,      // the model decides
    kRequired,  // one or several of them
    kNamed,     // this one
  };
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();  // [{type: function, function: {name, ...}}]
  Choice choice = Choice::kNone;
  std::string named;
  bool parallel = true;          // several calls in one answer
  std::set<std::string> strict;  // names of functions whose arguments must keep to their schemas

  bool may_call() const { return choice != Choice::kNone; }
  bool must_call() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
  // By function: its parameters of type string.
  std::map<std::string, std::set<std::string>> string_parameters() const;
  // The names of the functions that may be called.
  std::vector<std::string> names() const;
};

// The names in an object schema's "required".
std::set<std::string> required_names(const nlohmann::ordered_json& schema);

// Whether a schema allows strings alone, as far as its own "type" and "enum" say.
bool is_string_schema(const nlohmann::ordered_json& schema);

// tools, tool_choice, parallel_tool_calls. Throws Error(kInput): "tools[0].function.name: ...".
ToolUse read_tool_use(const nlohmann::ordered_json& body);

// Returns the tool_calls of an assistant's message in the form that ToolForms reads. `where` begins errors.
nlohmann::ordered_json read_tool_calls(const nlohmann::ordered_json& calls, const std::string& where);

}  // namespace vlcache
