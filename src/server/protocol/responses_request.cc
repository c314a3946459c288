#include "server/protocol/responses_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "api/request_fields.h"
#include "base/json_text.h"
#include "base/ordered_json.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson item_part(const OrderedJson& part, const std::string& where) {
  if (!part.is_object()) bad_field(where + ": expected an object");
  const std::string type = string_field(part, "type", where);
  if (type == "input_text" || type == "output_text" || type == "text" || type == "summary_text" ||
      type == "reasoning_text") {
    return {{"type", "text"}, {"text", string_field(part, "text", where)}};
  }
  // Agents of Codex write to each other so: a server that cannot encrypt has given it the text itself.
  if (type == "encrypted_content") return {{"type", "text"}, {"text", string_field(part, "encrypted_content", where)}};
  if (type == "refusal") return {{"type", "text"}, {"text", string_field(part, "refusal", where)}};
  if (type == "input_image" || type == "computer_screenshot") {
    if (find_field(part, "image_url") == nullptr && find_field(part, "file_id") != nullptr) {
      return {{"type", "image_url"}, {"uuid", string_field(part, "file_id", where)}};  // named before
    }
    OrderedJson image{{"type", "image_url"}, {"image_url", {{"url", string_field(part, "image_url", where)}}}};
    if (const OrderedJson* detail = find_field(part, "detail")) image["image_url"]["detail"] = *detail;
    if (const OrderedJson* id = find_field(part, "uuid"); id != nullptr) image["uuid"] = *id;
    return image;
  }
  if (type == "input_video") {  // not OpenAI's
    OrderedJson video = part;
    video["type"] = "video_url";
    return video;
  }
  if (type == "input_file") {
    OrderedJson file = OrderedJson::object();
    for (const char* key : {"file_data", "file_url", "file_id", "filename"}) {
      if (const OrderedJson* value = find_field(part, key); value != nullptr) file[key] = *value;
    }
    OrderedJson out{{"type", "file"}, {"file", std::move(file)}};
    if (const OrderedJson* choice = find_field(part, "vlcache"); choice != nullptr) out["vlcache"] = *choice;
    return out;
  }
  bad_field(where + ".type: expected input_text, input_image, input_file, input_video or output_text, found \"" + type +
            "\"");
}

// A text, or a list of parts.
OrderedJson item_parts(const OrderedJson* content, const std::string& where) {
  if (content == nullptr) return "";
  if (content->is_string()) return *content;
  if (!content->is_array()) bad_field(where + ": expected a string or a list of parts");
  OrderedJson parts = OrderedJson::array();
  for (size_t i = 0; i < content->size(); ++i) parts.push_back(item_part((*content)[i], item_name(where, i)));
  return parts;
}

// Collects the messages of items.
class ItemReader {
 public:
  explicit ItemReader(OrderedJson& messages) : messages_(messages) {}

  void add(const OrderedJson& item, const std::string& where) {
    if (!item.is_object()) bad_field(where + ": expected an object");
    const std::string type = find_field(item, "type") == nullptr ? "message" : string_field(item, "type", where);
    if (type == "message") return add_message(item, where);
    if (type == "reasoning" || type == "agent_reasoning") return add_thought(item);
    if (type == "agent_message") {  // what one agent writes to another
      messages_.push_back({{"role", "user"}, {"content", item_parts(find_field(item, "content"), where + ".content")}});
      return;
    }
    // Nothing to be shown: what they refer to is elsewhere, or can be read by the server that wrote them alone.
    if (type == "item_reference" || type == "compaction" || type == "compaction_summary" ||
        type == "context_compaction" || type == "additional_tools" || type == "mcp_list_tools") {
      return;
    }
    if (type == "function_call") {
      return add_call(item, name_of(item, where),
                      find_field(item, "arguments") == nullptr ? OrderedJson("{}") : item["arguments"]);
    }
    if (type == "custom_tool_call") {
      const OrderedJson* input = find_field(item, "input");
      return add_call(item, name_of(item, where),
                      OrderedJson{{"input", input == nullptr ? OrderedJson("") : *input}}.dump());
    }
    if (type.ends_with("_output") || type == "mcp_approval_response") return add_output(item, where);
    if (type.ends_with("_call") || type == "mcp_approval_request") return add_other_call(item, type);
    bad_field(where + ".type: expected a message, a call, its output or reasoning, found \"" + type + "\"");
  }

 private:
  void add_message(const OrderedJson& item, const std::string& where) {
    messages_.push_back({{"role", string_field(item, "role", where)},
                         {"content", item_parts(find_field(item, "content"), where + ".content")}});
    take_thought();
  }

  void add_thought(const OrderedJson& item) {
    for (const char* key : {"content", "summary"}) {
      const OrderedJson* parts = find_field(item, key);
      std::string text = parts == nullptr ? text_in(item, "text") : "";
      for (const OrderedJson& part : parts != nullptr && parts->is_array() ? *parts : OrderedJson::array()) {
        if (part.is_object() && part.contains("text") && part["text"].is_string()) {
          text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
        }
      }
      if (text.empty()) continue;
      thought_ += (thought_.empty() ? "" : "\n\n") + text;
      return;
    }
  }

  // A thought belongs to the assistant's next message.
  void take_thought() {
    if (thought_.empty() || messages_.back()["role"] != "assistant") return;
    messages_.back()["reasoning_content"] = std::exchange(thought_, "");
  }

  static std::string id_of(const OrderedJson& item) {
    for (const char* key : {"call_id", "id"}) {
      const OrderedJson* id = find_field(item, key);
      if (id != nullptr && id->is_string()) return id->get<std::string>();
    }
    return "";
  }

  // That of the function which the tool became.
  static std::string name_of(const OrderedJson& item, const std::string& where) {
    const std::string space = text_in(item, "namespace"), name = string_field(item, "name", where);
    return space.empty() ? name : space + "__" + name;
  }

  // Consecutive calls, and the assistant's text before them, are one message.
  void add_call(const OrderedJson& item, const std::string& name, const OrderedJson& arguments) {
    const bool follows = !messages_.empty() && messages_.back()["role"] == "assistant" && thought_.empty();
    if (!follows) messages_.push_back({{"role", "assistant"}, {"content", ""}});
    take_thought();
    messages_.back()["tool_calls"].push_back(
        {{"id", id_of(item)}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
  }

  // Calls of tools that other servers run: their fields are the arguments, and what came of them is in the same item.
  void add_other_call(const OrderedJson& item, const std::string& type) {
    OrderedJson arguments = OrderedJson::object(), result;
    for (const auto& [key, value] : item.items()) {
      if (key == "id" || key == "type" || key == "call_id" || key == "status" || key == "name" || value.is_null())
        continue;
      if (key == "output" || key == "outputs" || key == "results" || key == "result" || key == "error") {
        result = value;
      } else {
        append_member(arguments, key, value);
      }
    }
    const OrderedJson* name = find_field(item, "name");
    const std::string kind = type.ends_with("_call") ? type.substr(0, type.size() - 5) : type;
    const OrderedJson* own = find_field(item, "arguments");
    add_call(item, name != nullptr && name->is_string() ? name->get<std::string>() : kind,
             own != nullptr && arguments.size() == 1 ? *own : OrderedJson(arguments.dump()));
    if (find_field(item, "call_id") != nullptr && result.is_null()) return;  // its output is an item of its own
    if (result.is_null()) result = text_in(item, "status").empty() ? "completed" : text_in(item, "status");
    if (type == "image_generation_call") result = "an image";
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id_of(item)}, {"content", text_of_output(result)}});
  }

  static std::string text_of_output(const OrderedJson& output) {
    return output.is_string() ? output.get<std::string>() : output.dump();
  }

  void add_output(const OrderedJson& item, const std::string& where) {
    OrderedJson content;
    const OrderedJson* output = find_field(item, "output");
    const auto has_type = [](const OrderedJson& part) { return part.is_object() && part.contains("type"); };
    if (output != nullptr && text_in(*output, "type") == "computer_screenshot") {
      content = OrderedJson::array({item_part(*output, where + ".output")});
    } else if (output != nullptr && output->is_array() && std::ranges::all_of(*output, has_type)) {
      content = item_parts(output, where + ".output");
    } else if (output != nullptr) {
      content = text_of_output(*output);
    } else {
      OrderedJson rest = item;
      for (const char* key : {"type", "id", "call_id", "status"}) rest.erase(key);
      content = rest.empty() ? text_in(item, "status") : rest.dump();
    }
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id_of(item)}, {"content", std::move(content)}});
  }

  OrderedJson& messages_;
  std::string thought_;  // of the assistant's next message
};

OrderedJson messages_of_items(const OrderedJson& body) {
  OrderedJson messages = OrderedJson::array();
  if (find_field(body, "instructions") != nullptr) {
    messages.push_back({{"role", "system"}, {"content", string_field(body, "instructions", "the request")}});
  }
  const OrderedJson* input = find_field(body, "input");
  if (input == nullptr || (!input->is_string() && !input->is_array()))
    bad_field("input: expected a text or a list of items");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  check_n_messages(input->size(), "input");
  ItemReader reader(messages);
  for (size_t i = 0; i < input->size(); ++i) reader.add((*input)[i], item_name("input", i));
  return messages;
}

void add_tool(const OrderedJson& tool, const std::string& at, const std::string& space, ResponsesPlan& known,
              OrderedJson& functions) {
  if (!tool.is_object()) bad_field(at + ": expected an object");
  const std::string type = string_field(tool, "type", at);
  if (type == "namespace") {
    const OrderedJson* members = find_field(tool, "tools");
    if (members == nullptr || !members->is_array()) bad_field(at + ".tools: expected a list");
    for (size_t i = 0; i < members->size(); ++i) {
      add_tool((*members)[i], item_name(at + ".tools", i), string_field(tool, "name", at), known, functions);
    }
    return;
  }
  if (type != "function" && type != "custom") return;  // other servers run it
  OrderedJson function = find_field(tool, "function") != nullptr ? tool["function"] : tool;
  const std::string name = string_field(function, "name", at), flat = space.empty() ? name : space + "__" + name;
  if (!known.names.insert(flat).second) return;
  if (!space.empty()) known.namespaced[flat] = {space, name};
  if (type == "custom") {
    known.custom.insert(flat);
    std::string description = text_in(tool, "description");
    const OrderedJson* format = find_field(tool, "format");
    if (format != nullptr && format->is_object() && format->contains("definition")) {
      description += "\nThe input follows this grammar:\n" + text_in(*format, "definition");
    }
    function = {{"description", description},
                {"parameters",
                 {{"type", "object"},
                  {"properties", {{"input", {{"type", "string"}}}}},
                  {"required", OrderedJson::array({"input"})},
                  {"additionalProperties", false}}}};
  }
  function.erase("type");
  function["name"] = flat;
  functions.push_back({{"type", "function"}, {"function", std::move(function)}});
}

// The choice among the functions that remain.
OrderedJson choice_of(const OrderedJson& choice, const ResponsesPlan& known, OrderedJson& functions) {
  const auto flat_name = [](const OrderedJson& tool) {
    const std::string name = text_in(tool, "name"), space = text_in(tool, "namespace");
    return space.empty() ? name : space + "__" + name;
  };
  if (!choice.is_object()) return known.names.empty() ? OrderedJson("none") : choice;
  const std::string type = text_in(choice, "type");
  if (type == "allowed_tools") {
    const OrderedJson* allowed = find_field(choice, "tools");
    std::set<std::string> names;
    for (const OrderedJson& tool : allowed != nullptr && allowed->is_array() ? *allowed : OrderedJson::array()) {
      if (tool.is_object()) names.insert(flat_name(tool));
    }
    OrderedJson kept = OrderedJson::array();
    for (OrderedJson& function : functions) {
      if (names.contains(function["function"]["name"].get<std::string>())) kept.push_back(std::move(function));
    }
    functions = std::move(kept);
    if (functions.empty()) return "none";
    return text_in(choice, "mode") == "required" ? "required" : "auto";
  }
  if (find_field(choice, "name") != nullptr) {
    return {{"type", "function"}, {"function", {{"name", flat_name(choice)}}}};
  }
  if (find_field(choice, "function") != nullptr) return choice;
  return known.names.empty() ? "none" : "auto";  // a tool that was left out
}

void add_functions(const OrderedJson& body, ResponsesPlan& known, OrderedJson& chat) {
  OrderedJson functions = OrderedJson::array();
  if (const OrderedJson* tools = find_field(body, "tools")) {
    if (!tools->is_array()) bad_field("tools: expected a list");
    for (size_t i = 0; i < tools->size(); ++i) add_tool((*tools)[i], item_name("tools", i), "", known, functions);
  }
  const OrderedJson* input = find_field(body, "input");
  for (size_t i = 0; input != nullptr && input->is_array() && i < input->size(); ++i) {
    const OrderedJson& item = (*input)[i];
    const std::string type = text_in(item, "type");
    if (type != "additional_tools" && type != "tool_search_output") continue;  // what a search found may be called
    const OrderedJson* tools = find_field(item, "tools");
    for (size_t k = 0; tools != nullptr && tools->is_array() && k < tools->size(); ++k) {
      add_tool((*tools)[k], item_name(item_name("input", i) + ".tools", k), "", known, functions);
    }
  }
  OrderedJson chosen;
  if (const OrderedJson* choice = find_field(body, "tool_choice")) chosen = choice_of(*choice, known, functions);
  if (!functions.empty()) chat["tools"] = std::move(functions);
  if (!chosen.is_null()) chat["tool_choice"] = std::move(chosen);
  if (const OrderedJson* parallel = find_field(body, "parallel_tool_calls")) chat["parallel_tool_calls"] = *parallel;
}

// What the answer includes besides its text: of all options, log probabilities alone are supported.
void add_include(const OrderedJson& body, OrderedJson& chat) {
  if (const OrderedJson* n_top = find_field(body, "top_logprobs")) {
    chat["top_logprobs"] = *n_top;
    chat["logprobs"] = *n_top != 0;  // 0: the value in answers if none were requested
  }
  const OrderedJson* include = find_field(body, "include");
  if (include == nullptr) return;
  if (!include->is_array()) bad_field("include: expected an array");
  if (std::ranges::find(*include, OrderedJson("message.output_text.logprobs")) != include->end())
    chat["logprobs"] = true;
}

// text.format, where the schema is beside its name.
void add_text_format(const OrderedJson& body, OrderedJson& chat) {
  const OrderedJson* text = find_field(body, "text");
  const OrderedJson* format = text != nullptr && text->is_object() ? find_field(*text, "format") : nullptr;
  if (format == nullptr) return;
  if (!format->is_object()) bad_field("text.format: expected an object");
  const std::string type = string_field(*format, "type", "text.format");
  chat["response_format"] = {{"type", type}};
  if (type != "json_schema") return;
  OrderedJson schema = *format;
  schema.erase("type");
  chat["response_format"]["json_schema"] = std::move(schema);
}

}  // namespace

OrderedJson chat_of_responses(const OrderedJson& body, ResponsesPlan& tools) {
  for (const char* key : {"conversation", "prompt"}) {
    if (find_field(body, key) != nullptr) {
      bad_field(std::string(key) + ": not kept by this server; send what was said before as input");
    }
  }
  if (bool_field(body, "background", false)) bad_field("background: answers are given while the client waits");
  OrderedJson chat;
  copy_common_fields(body, chat);
  copy_constraints(body, chat);
  if (const OrderedJson* limit = find_field(body, "max_output_tokens")) chat["max_tokens"] = *limit;
  if (const OrderedJson* reasoning = find_field(body, "reasoning")) chat["reasoning"] = *reasoning;
  add_functions(body, tools, chat);
  add_text_format(body, chat);
  add_include(body, chat);
  chat["messages"] = messages_of_items(body);
  return chat;
}

}  // namespace vlcache
