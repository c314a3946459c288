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
  nlohmann::ordered_json schema = nullptr;  // of kJsonSchema
  std::vector<std::string> choices = {};    // of kChoice
  std::string text = "";                    // of kRegex and kGrammar (GBNF)
  std::string field = "";                   // that errors about the form name
};

// Of a response_format; null: any text. Besides OpenAI's types it accepts {"type": "choice", "choice": [...]}, {"type":
// "regex", "regex": "..."} and {"type": "grammar", "grammar": "..."}, a `schema` beside json_object as in llama.cpp,
// and TGI's `value` beside json, json_object, json_schema and regex. Throws Error(kInput): "response_format...: ...".
AnswerFormat read_answer_format(const nlohmann::ordered_json& asked);
// The same of OpenAI's Responses and Anthropic's messages, where the schema stands beside the type: OpenAI's types
// alone.
AnswerFormat read_flat_format(const nlohmann::ordered_json& asked, const std::string& where);
// A form of `type`, "json" (a schema, or its text), "json_object", "choice", "regex" or "grammar", that the field
// `field` gives. Throws Error(kInput).
AnswerFormat make_answer_format(const std::string& type, const nlohmann::ordered_json& given, const std::string& field);

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
  // Where the client has each function, in errors and notes: "tools[0].function", and its schema.
  struct Place {
    std::string function, schema;
  };
  std::map<std::string, Place> places;  // by the function's name

  bool may_call() const { return choice != Choice::kNone; }
  bool must_call() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
  // By function: its parameters of type string.
  std::map<std::string, std::set<std::string>> string_parameters() const;
  // The names of the functions that may be called.
  std::vector<std::string> names() const;
  // Adds a function {name, description, parameters}; its name is at `place.function`.name. Throws Error(kInput).
  void add(const std::string& name, const nlohmann::ordered_json& function, const char* parameters, Place place);
  // kAuto is kNone without tools. Throws Error(kInput) for a function that does not exist.
  void choose(Choice how, const std::string& name = "");
};

// The names in an object schema's "required".
std::set<std::string> required_names(const nlohmann::ordered_json& schema);

// Whether a schema allows strings alone, as far as its own "type" and "enum" say.
bool is_string_schema(const nlohmann::ordered_json& schema);

// tools, tool_choice, parallel_tool_calls. Throws Error(kInput): "tools[0].function.name: ...".
ToolUse read_tool_use(const nlohmann::ordered_json& body);
// OpenAI's tool_choice.
void read_tool_choice(const nlohmann::ordered_json& choice, ToolUse& use);

}  // namespace vlcache
