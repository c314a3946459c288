#include "server/protocol/messages_request.h"

#include <string>

#include "api/json_fields.h"
#include "api/request_fields.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

OrderedJson image_part(const OrderedJson& block, const std::string& where) {
  const OrderedJson* source = find_field(block, "source");
  if (source == nullptr || !source->is_object()) bad_field(where + ".source: expected an object");
  const std::string at = where + ".source", type = string_field(*source, "type", at);
  std::string url;
  if (type == "base64") {
    url = "data:" + string_field(*source, "media_type", at) + ";base64," + string_field(*source, "data", at);
  } else if (type == "url") {
    url = string_field(*source, "url", at);
  } else if (type == "file") {  // named by an earlier request
    return {{"type", "image_url"}, {"uuid", string_field(*source, "file_id", at)}};
  } else {
    bad_field(at + ".type: expected \"base64\", \"url\" or \"file\", found \"" + type + "\"");
  }
  OrderedJson part{{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}};
  if (const OrderedJson* id = find_field(block, "uuid"); id != nullptr) part["uuid"] = *id;
  return part;
}

// A block that is text or an image.
OrderedJson part_of(const OrderedJson& block, const std::string& where) {
  if (!block.is_object()) bad_field(where + ": expected an object");
  const std::string type = string_field(block, "type", where);
  if (type == "text") return text_part(string_field(block, "text", where));
  if (type == "image") return image_part(block, where);
  bad_field(where + ".type: expected \"text\" or \"image\", found \"" + type + "\"");
}

// A text, or a list of such blocks.
OrderedJson parts_of(const OrderedJson* content, const std::string& where) {
  if (content == nullptr) return "";
  if (content->is_string()) return *content;
  if (!content->is_array()) bad_field(where + ": expected a string or a list of blocks");
  OrderedJson parts = OrderedJson::array();
  for (size_t i = 0; i < content->size(); ++i) parts.push_back(part_of((*content)[i], item_name(where, i)));
  return parts;
}

bool is_block(const OrderedJson& block, std::string_view type) {
  const OrderedJson* found = block.is_object() ? find_field(block, "type") : nullptr;
  return found != nullptr && found->is_string() && found->get_ref<const std::string&>() == type;
}

OrderedJson call_of(const OrderedJson& block, const std::string& where) {
  const OrderedJson* input = find_field(block, "input");
  if (input != nullptr && !input->is_object()) bad_field(where + ".input: expected an object");
  return {{"id", string_field(block, "id", where)},
          {"type", "function"},
          {"function",
           {{"name", string_field(block, "name", where)}, {"arguments", input == nullptr ? "{}" : input->dump()}}}};
}

// The user's text comes after the results of the tools in the same message.
void add_user(const OrderedJson& blocks, const std::string& where, OrderedJson& messages) {
  OrderedJson said = OrderedJson::array();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const OrderedJson& block = blocks[i];
    const std::string at = item_name(where, i);
    if (!is_block(block, "tool_result")) {
      said.push_back(part_of(block, at));
      continue;
    }
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", string_field(block, "tool_use_id", at)},
                        {"content", parts_of(find_field(block, "content"), at + ".content")}});
  }
  if (!said.empty()) messages.push_back({{"role", "user"}, {"content", std::move(said)}});
}

void add_assistant(const OrderedJson& blocks, const std::string& where, OrderedJson& messages) {
  OrderedJson said = OrderedJson::array(), calls = OrderedJson::array();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const OrderedJson& block = blocks[i];
    const std::string at = item_name(where, i);
    if (is_block(block, "thinking") || is_block(block, "redacted_thinking")) continue;
    if (is_block(block, "tool_use")) {
      calls.push_back(call_of(block, at));
    } else {
      said.push_back(part_of(block, at));
    }
  }
  OrderedJson message{{"role", "assistant"}, {"content", std::move(said)}};
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages.push_back(std::move(message));
}

OrderedJson messages_of(const OrderedJson& body) {
  OrderedJson messages = OrderedJson::array();
  if (const OrderedJson* system = find_field(body, "system")) {
    messages.push_back({{"role", "system"}, {"content", parts_of(system, "system")}});
  }
  const OrderedJson* turns = find_field(body, "messages");
  if (turns == nullptr || !turns->is_array() || turns->empty()) {
    bad_field("messages: expected a list of messages, at least one");
  }
  for (size_t i = 0; i < turns->size(); ++i) {
    const OrderedJson& turn = (*turns)[i];
    const std::string at = item_name("messages", i);
    if (!turn.is_object()) bad_field(at + ": expected an object");
    const std::string role = string_field(turn, "role", at);
    if (role != "user" && role != "assistant") {
      bad_field(at + ".role: expected \"user\" or \"assistant\", found \"" + role + "\"");
    }
    const OrderedJson* content = find_field(turn, "content");
    if (content == nullptr || !content->is_array()) {
      messages.push_back({{"role", role}, {"content", parts_of(content, at + ".content")}});
    } else if (role == "user") {
      add_user(*content, at + ".content", messages);
    } else {
      add_assistant(*content, at + ".content", messages);
    }
  }
  return messages;
}

OrderedJson tools_of(const OrderedJson& tools) {
  if (!tools.is_array()) bad_field("tools: expected a list");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& tool = tools[i];
    const std::string at = item_name("tools", i);
    if (!tool.is_object()) bad_field(at + ": expected an object");
    const OrderedJson* type = find_field(tool, "type");
    if (type != nullptr && *type != "custom") {
      bad_field(at + ".type: tools that Anthropic's own models know (" + type->dump() +
                ") are not known here; describe it with name, description and input_schema");
    }
    OrderedJson function{{"name", string_field(tool, "name", at)}};
    if (find_field(tool, "description") != nullptr) function["description"] = string_field(tool, "description", at);
    const OrderedJson* schema = find_field(tool, "input_schema");
    if (schema == nullptr || !schema->is_object()) bad_field(at + ".input_schema: expected an object");
    function["parameters"] = *schema;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void add_tools(const OrderedJson& body, OrderedJson& chat) {
  if (const OrderedJson* tools = find_field(body, "tools")) chat["tools"] = tools_of(*tools);
  const OrderedJson* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  if (!choice->is_object()) bad_field("tool_choice: expected an object");
  const std::string type = string_field(*choice, "type", "tool_choice");
  if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", string_field(*choice, "name", "tool_choice")}}}};
  } else if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else {
    bad_field("tool_choice.type: expected auto, any, tool or none, found \"" + type + "\"");
  }
  chat["parallel_tool_calls"] = !bool_field(*choice, "disable_parallel_tool_use", false);
}

// output_config.format, which holds its schema directly.
void add_format(const OrderedJson& body, OrderedJson& chat) {
  const OrderedJson* config = find_field(body, "output_config");
  if (config == nullptr) return;
  if (!config->is_object()) bad_field("output_config: expected an object");
  const OrderedJson* format = find_field(*config, "format");
  if (format == nullptr) return;
  const std::string where = "output_config.format";
  if (!format->is_object()) bad_field(where + ": expected an object");
  if (const std::string type = string_field(*format, "type", where); type != "json_schema") {
    bad_field(where + ".type: expected \"json_schema\", found \"" + type + "\"");
  }
  const OrderedJson* schema = find_field(*format, "schema");
  if (schema == nullptr) bad_field(where + ".schema: expected an object");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *schema}}}};
}

// The switch in the templates of thinking models, unless the request sets it itself.
void add_thinking(const OrderedJson& body, OrderedJson& chat) {
  const OrderedJson* thinking = find_field(body, "thinking");
  if (thinking == nullptr) return;
  if (!thinking->is_object()) bad_field("thinking: expected an object");
  const bool enabled = string_field(*thinking, "type", "thinking") != "disabled";
  OrderedJson& variables = chat["chat_template_kwargs"];
  if (variables.is_null()) variables = OrderedJson::object();
  if (variables.is_object() && !variables.contains("enable_thinking")) variables["enable_thinking"] = enabled;
}

}  // namespace

OrderedJson chat_of_messages(const OrderedJson& body, bool counting) {
  OrderedJson chat;
  const OrderedJson* limit = find_field(body, "max_tokens");
  if (limit == nullptr && !counting) bad_field("max_tokens: expected an integer");
  chat["max_tokens"] = counting ? OrderedJson(1) : *limit;
  copy_common_fields(body, chat);
  if (const OrderedJson* stop = find_field(body, "stop_sequences")) chat["stop"] = *stop;
  add_tools(body, chat);
  add_format(body, chat);
  add_thinking(body, chat);
  chat["messages"] = messages_of(body);
  return chat;
}

}  // namespace vlcache
