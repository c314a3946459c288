#include "api/generic_tools.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "api/answer_format.h"
#include "base/json_text.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

enum class Detail { kSchema, kDescription, kSignature };

// "at: \"sky\" | \"sea\"", "n?: integer"
std::string parameter_text(const std::string& name, const OrderedJson& schema, bool required) {
  std::string type = text_in(schema, "type");
  if (schema.is_object() && schema.contains("enum") && schema["enum"].is_array() && schema["enum"].size() <= 8) {
    type.clear();
    for (const OrderedJson& value : schema["enum"]) type += (type.empty() ? "" : " | ") + value.dump();
  }
  return name + (required ? "" : "?") + ": " + (type.empty() ? "any" : type);
}

std::string signature(const OrderedJson& function) {
  const auto parameters = function.find("parameters");
  std::string text;
  if (parameters != function.end() && parameters->is_object() && parameters->contains("properties") &&
      (*parameters)["properties"].is_object()) {
    const std::set<std::string> needed = required_names(*parameters);
    for (const auto& [name, schema] : (*parameters)["properties"].items()) {
      text += (text.empty() ? "" : ", ") + parameter_text(name, schema, needed.contains(name));
    }
  }
  return text_in(function, "name") + "(" + text + ")";
}

std::string tool_line(const OrderedJson& tool, Detail detail) {
  const OrderedJson& function = tool["function"];
  if (detail == Detail::kSchema) return function.dump();
  const std::string description = text_in(function, "description");
  std::string first = description.substr(0, description.find_first_of("\r\n"));
  if (const size_t end = first.find(". "); end != first.npos) first.resize(end + 1);
  return signature(function) + (detail == Detail::kSignature || first.empty() ? "" : " - " + first);
}

std::string tools_text(std::span<const std::string> lines) {
  std::string text = "You can call these functions:\n";
  for (const std::string& l : lines) text += l + "\n";
  return text +
         "To call functions, answer with nothing but a list of calls in JSON, such as "
         "[{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}]. Otherwise answer in words.";
}

}  // namespace

GenericTools generic_tools(const OrderedJson& tools, int64_t max_tokens,
                           const std::function<int64_t(const std::string& text)>& n_tokens) {
  GenericTools out;
  for (const Detail detail : {Detail::kSchema, Detail::kDescription, Detail::kSignature}) {
    std::vector<std::string> lines;
    for (const OrderedJson& tool : tools) lines.push_back(tool_line(tool, detail));
    out.text = tools_text(lines);
    if (n_tokens(out.text) <= max_tokens) return out;
    if (detail != Detail::kSignature) continue;
    size_t n = 0;  // functions that fit
    for (size_t too_many = lines.size(); too_many - n > 1;) {
      const size_t middle = (n + too_many) / 2;
      (n_tokens(tools_text(std::span(lines).first(middle))) <= max_tokens ? n : too_many) = middle;
    }
    out.text = n == 0 ? "" : tools_text(std::span(lines).first(n));
    std::string left_out;
    for (size_t i = n; i < lines.size(); ++i) {
      left_out += (left_out.empty() ? "" : ", ") + text_in(tools[i]["function"], "name");
    }
    out.notes.push_back("tools: the model is not shown " + left_out + ": all of them would take more than " +
                        std::to_string(max_tokens) + " tokens, an eighth of its context");
  }
  return out;
}

}  // namespace vlcache
