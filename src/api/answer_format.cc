#include "api/answer_format.h"

#include <algorithm>
#include <set>

#include "api/json_fields.h"
#include "base/json.h"
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
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = item_name("tools", i), type = text_in(tools[i], "type");
    if (type != "function") bad_field(where + ".type: expected \"function\", found \"" + type + "\"");
    const OrderedJson* function = find_field(tools[i], "function");
    if (function == nullptr || !function->is_object()) bad_field(where + ".function: expected an object");
    const std::string name = text_in(*function, "name");
    use.add(name, *function, "parameters", {where + ".function", where + ".function.parameters"});
    if (bool_field(*function, "strict", bool_field(tools[i], "strict", false))) use.strict.insert(name);
  }
}

AnswerFormat schema_format(const OrderedJson& given, const std::string& field) {
  const OrderedJson* schema = find_field(given, "schema");
  if (schema == nullptr) bad_field(field + ": expected a JSON schema, an object");
  return make_answer_format("json", schema->is_string() ? OrderedJson() : *schema, field);
}

// A schema beside the type json_object: `schema` in llama.cpp, `value` in TGI; or as beside json_schema. Null: none.
const OrderedJson* schema_beside(const OrderedJson& asked, std::string& key) {
  for (const char* name : {"schema", "value", "json_schema"}) {
    const OrderedJson* schema = find_field(asked, name);
    key = name;
    if (schema == nullptr || *schema == "" || (schema->is_structured() && schema->empty())) continue;
    const OrderedJson* inner = schema->is_object() ? find_field(*schema, "schema") : nullptr;
    return key == "json_schema" && inner != nullptr ? inner : schema;
  }
  return nullptr;
}

[[noreturn]] void bad_type(const std::string& where, const std::string& type) {
  bad_field(where +
            ".type: expected \"text\", \"json_object\", \"json_schema\", \"choice\", \"regex\" or \"grammar\", found "
            "\"" +
            type + "\"");
}

}  // namespace

AnswerFormat make_answer_format(const std::string& type, const OrderedJson& given, const std::string& field) {
  AnswerFormat format;
  format.field = field;
  if (type == "json_object") {
    format.kind = AnswerFormat::Kind::kJsonObject;
  } else if (type == "json") {
    format.kind = AnswerFormat::Kind::kJsonSchema;
    format.schema = given.is_string() ? parse_ordered_or_discard(given.get_ref<const std::string&>()) : given;
    if (!format.schema.is_object()) bad_field(field + ": expected a JSON schema, an object");
  } else if (type == "choice") {
    format.kind = AnswerFormat::Kind::kChoice;
    const auto is_text = [](const OrderedJson& choice) { return choice.is_string(); };
    if (!given.is_array() || given.empty() || !std::ranges::all_of(given, is_text)) {
      bad_field(field + ": expected a list of texts, at least one");
    }
    format.choices = given.get<std::vector<std::string>>();
  } else {
    format.kind = type == "regex" ? AnswerFormat::Kind::kRegex : AnswerFormat::Kind::kGrammar;
    if (given.is_string()) format.text = given.get<std::string>();
    if (format.text.empty()) {
      bad_field(field + ": expected " + (type == "regex" ? "a regular expression" : "a grammar in GBNF") + ", as text");
    }
  }
  return format;
}

AnswerFormat read_flat_format(const OrderedJson& asked, const std::string& where) {
  const std::string type = text_in(asked, "type");
  if (type == "text") return {.field = where + ".text"};
  std::string key;
  const bool is_json = type == "json_object" || (type == "json" && asked.contains("value"));
  if (const OrderedJson* schema = is_json ? schema_beside(asked, key) : nullptr) {
    return make_answer_format("json", *schema, where + "." + key);
  }
  if (is_json) return make_answer_format("json_object", OrderedJson(), where + ".json_object");
  if (type == "choice" || type == "regex" || type == "grammar") {
    return make_answer_format(type, OrderedJson(), where + "." + type);
  }
  if (type != "json_schema") bad_type(where, type);
  return schema_format(asked, where + ".schema");
}

AnswerFormat read_answer_format(const OrderedJson& asked) {
  if (asked.is_null()) return {};
  const std::string where = "response_format", type = text_in(asked, "type");
  if (type == "choice" || type == "regex" || type == "grammar") {
    const OrderedJson* given = find_field(asked, type.c_str());
    if (given == nullptr && find_field(asked, "value") != nullptr) {  // TGI's
      return make_answer_format(type, asked["value"], where + ".value");
    }
    return make_answer_format(type, given == nullptr ? OrderedJson() : *given, where + "." + type);
  }
  if (type != "json_schema") return read_flat_format(asked, where);
  const OrderedJson* named = find_field(asked, "json_schema");
  if (named == nullptr && find_field(asked, "value") != nullptr) {  // TGI's {name, schema}
    const OrderedJson& value = asked["value"];
    const OrderedJson* schema = value.is_object() ? find_field(value, "schema") : nullptr;
    return make_answer_format("json", schema != nullptr && schema->is_object() ? *schema : value, where + ".value");
  }
  if (named == nullptr || !named->is_object()) {
    bad_field(where + ".json_schema: expected {\"name\": ..., \"schema\": {...}}");
  }
  return schema_format(*named, where + ".json_schema.schema");
}

void ToolUse::add(const std::string& name, const OrderedJson& function, const char* parameters, Place place) {
  if (tools.size() == kMaxTools) bad_field("tools: expected at most " + std::to_string(kMaxTools));
  if (!is_name(name)) bad_field(place.function + ".name: expected 1 to 128 letters, digits, \"_\" or \"-\"");
  if (places.contains(name)) bad_field(place.function + ".name: \"" + name + "\" is there twice");
  const OrderedJson* schema = find_field(function, parameters);
  if (schema != nullptr && !schema->is_object()) bad_field(place.schema + ": expected a JSON schema, an object");
  // Templates read the fields that exist, and some cannot do without parameters.
  OrderedJson kept = {{"name", name}};
  if (find_field(function, "description") != nullptr) kept["description"] = text_in(function, "description");
  kept["parameters"] =
      schema != nullptr ? *schema : OrderedJson{{"type", "object"}, {"properties", OrderedJson::object()}};
  tools.push_back({{"type", "function"}, {"function", std::move(kept)}});
  places.emplace(name, std::move(place));
  choice = Choice::kAuto;
}

void ToolUse::choose(Choice how, const std::string& name) {
  choice = how == Choice::kAuto && tools.empty() ? Choice::kNone : how;
  named = name;
  if (how == Choice::kNamed && !places.contains(name))
    bad_field("tool_choice: \"" + name + "\" is not among the tools");
  if (must_call() && tools.empty()) bad_field("tool_choice: there are no tools to call");
}

void read_tool_choice(const OrderedJson& choice, ToolUse& use) {
  if (choice == "none") {
    use.choose(ToolUse::Choice::kNone);
  } else if (choice == "auto") {
    use.choose(ToolUse::Choice::kAuto);
  } else if (choice == "required") {
    use.choose(ToolUse::Choice::kRequired);
  } else if (choice.is_object() && text_in(choice, "type") == "function" && find_field(choice, "function") != nullptr) {
    use.choose(ToolUse::Choice::kNamed, text_in(choice["function"], "name"));
  } else {
    bad_field(
        "tool_choice: expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": "
        "...}}");
  }
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
  if (const OrderedJson* tools = find_field(body, "tools")) read_tools(*tools, use);
  if (const OrderedJson* choice = find_field(body, "tool_choice")) read_tool_choice(*choice, use);
  use.parallel = bool_field(body, "parallel_tool_calls", true);
  return use;
}

}  // namespace vlcache
