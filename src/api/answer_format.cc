#include "api/answer_format.h"

#include <algorithm>
#include <set>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/request_limits.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_name(const std::string& name) {
  const auto fits = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes && std::ranges::all_of(name, fits);
}

void read_tools(const OrderedJson& tools, ToolUse& use) {
  if (!tools.is_array()) bad_field("tools: expected a list of tools");
  if (tools.size() > kMaxTools) bad_field("tools: expected at most " + std::to_string(kMaxTools));
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    const std::string type = text_in(tools[i], "type");
    if (type != "function") bad_field(where + ".type: expected \"function\", found \"" + type + "\"");
    const OrderedJson* function = find_field(tools[i], "function");
    if (function == nullptr || !function->is_object()) bad_field(where + ".function: expected an object");
    const std::string name = text_in(*function, "name");
    if (!is_name(name)) bad_field(where + ".function.name: expected 1 to 128 letters, digits, \"_\" or \"-\"");
    if (!names.insert(name).second) bad_field(where + ".function.name: \"" + name + "\" is there twice");
    const OrderedJson* parameters = find_field(*function, "parameters");
    if (parameters != nullptr && !parameters->is_object()) {
      bad_field(where + ".function.parameters: expected a JSON schema, an object");
    }
    if (bool_field(*function, "strict", bool_field(tools[i], "strict", false))) use.strict.insert(name);
    // Templates read the fields that exist, and some cannot do without parameters.
    OrderedJson kept = {{"name", name}};
    if (find_field(*function, "description") != nullptr) kept["description"] = text_in(*function, "description");
    kept["parameters"] =
        parameters != nullptr ? *parameters : OrderedJson{{"type", "object"}, {"properties", OrderedJson::object()}};
    use.tools.push_back({{"type", "function"}, {"function", std::move(kept)}});
  }
}

void read_choice(const OrderedJson& choice, ToolUse& use) {
  constexpr const char* kExpected =
      "expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  if (choice == "none") {
    use.choice = ToolUse::Choice::kNone;
  } else if (choice == "auto") {
    use.choice = use.tools.empty() ? ToolUse::Choice::kNone : ToolUse::Choice::kAuto;
  } else if (choice == "required") {
    use.choice = ToolUse::Choice::kRequired;
  } else if (choice.is_object() && text_in(choice, "type") == "function" && find_field(choice, "function") != nullptr) {
    use.choice = ToolUse::Choice::kNamed;
    use.named = text_in(choice["function"], "name");
    const auto is_it = [&](const OrderedJson& tool) { return tool["function"]["name"] == use.named; };
    if (!std::ranges::any_of(use.tools, is_it)) bad_field("tool_choice: \"" + use.named + "\" is not among the tools");
  } else {
    bad_field(std::string("tool_choice: ") + kExpected);
  }
  if (use.must_call() && use.tools.empty()) bad_field("tool_choice: there are no tools to call");
}

// Of a form that is no JSON.
AnswerFormat read_text_format(const OrderedJson& asked, const std::string& type) {
  AnswerFormat format;
  format.field = text_in(asked, "field");
  if (format.field.empty()) format.field = "response_format." + type;
  const OrderedJson* given = find_field(asked, type.c_str());
  if (type == "choice") {
    format.kind = AnswerFormat::Kind::kChoice;
    const auto is_text = [](const OrderedJson& choice) { return choice.is_string(); };
    if (given == nullptr || !given->is_array() || given->empty() || !std::ranges::all_of(*given, is_text)) {
      bad_field(format.field + ": expected a list of texts, at least one");
    }
    format.choices = given->get<std::vector<std::string>>();
  } else {
    format.kind = type == "regex" ? AnswerFormat::Kind::kRegex : AnswerFormat::Kind::kGrammar;
    format.text = text_in(asked, type.c_str());
    if (format.text.empty()) {
      bad_field(format.field + ": expected " + (type == "regex" ? "a regular expression" : "a grammar in GBNF") +
                ", as text");
    }
  }
  return format;
}

}  // namespace

AnswerFormat read_answer_format(const OrderedJson& asked) {
  AnswerFormat format;
  if (asked.is_null()) return format;
  const std::string type = text_in(asked, "type");
  if (type == "text") return format;
  if (type == "json_object") {
    format.kind = AnswerFormat::Kind::kJsonObject;
    return format;
  }
  if (type == "choice" || type == "regex" || type == "grammar") return read_text_format(asked, type);
  if (type != "json_schema") {
    bad_field(
        "response_format.type: expected \"text\", \"json_object\", \"json_schema\", \"choice\", \"regex\" or "
        "\"grammar\", found \"" +
        type + "\"");
  }
  const OrderedJson* named = find_field(asked, "json_schema");
  if (named == nullptr || !named->is_object()) {
    bad_field("response_format.json_schema: expected {\"name\": ..., \"schema\": {...}}");
  }
  const OrderedJson* schema = find_field(*named, "schema");
  if (schema == nullptr || !schema->is_object()) {
    bad_field(std::string(AnswerFormat::kSchemaField) + ": expected a JSON schema, an object");
  }
  format.kind = AnswerFormat::Kind::kJsonSchema;
  format.schema = *schema;
  return format;
}

std::vector<std::string> ToolUse::names() const {
  std::vector<std::string> names;
  for (const OrderedJson& tool : tools) {
    const auto name = tool["function"]["name"].get<std::string>();
    if (choice != Choice::kNamed || name == named) names.push_back(name);
  }
  return names;
}

std::set<std::string> required_names(const OrderedJson& schema) {
  std::set<std::string> names;
  const OrderedJson* list = find_field(schema, "required");
  for (const OrderedJson& name : list != nullptr && list->is_array() ? *list : OrderedJson::array()) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

bool is_string_schema(const OrderedJson& schema) {
  if (!schema.is_object() || schema.contains("type")) return text_in(schema, "type") == "string";
  const OrderedJson* choices = find_field(schema, "enum");
  return choices != nullptr && choices->is_array() && !choices->empty() &&
         std::ranges::all_of(*choices, [](const OrderedJson& v) { return v.is_string(); });
}

std::map<std::string, std::set<std::string>> ToolUse::string_parameters() const {
  std::map<std::string, std::set<std::string>> out;
  for (const OrderedJson& tool : tools) {
    const OrderedJson* properties = find_field(tool["function"]["parameters"], "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      if (is_string_schema(schema)) out[tool["function"]["name"].get<std::string>()].insert(name);
    }
  }
  return out;
}

ToolUse read_tool_use(const OrderedJson& body) {
  ToolUse use;
  const OrderedJson* tools = find_field(body, "tools");
  if (tools != nullptr) read_tools(*tools, use);
  if (!use.tools.empty()) use.choice = ToolUse::Choice::kAuto;
  const OrderedJson* choice = find_field(body, "tool_choice");
  if (choice != nullptr) read_choice(*choice, use);
  use.parallel = bool_field(body, "parallel_tool_calls", true);
  return use;
}

OrderedJson read_tool_calls(const OrderedJson& calls, const std::string& where) {
  if (!calls.is_array()) bad_field(where + ": expected a list of calls");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = where + "[" + std::to_string(i) + "].function";
    const OrderedJson* function = calls[i].is_object() ? find_field(calls[i], "function") : nullptr;
    if (function == nullptr || !function->is_object()) bad_field(at + ": expected {\"name\": ..., \"arguments\": ...}");
    const std::string name = text_in(*function, "name");  // other servers allow other names
    if (name.empty()) bad_field(at + ".name: expected a name");
    const OrderedJson* arguments = find_field(*function, "arguments");
    const bool good = arguments == nullptr || arguments->is_string() || arguments->is_object();
    if (!good) bad_field(at + ".arguments: expected a JSON object, as text");
    out.push_back(
        {{"id", text_in(calls[i], "id")},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", arguments == nullptr ? OrderedJson("{}") : *arguments}}}});
  }
  return out;
}

}  // namespace vlcache
