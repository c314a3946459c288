#include "server/protocol/messages_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "api/request_fields.h"
#include "base/json_text.h"

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

void add_parts(const OrderedJson* content, const std::string& where, OrderedJson& parts);

// A PDF as a chat completion's part has it.
OrderedJson file_part(const OrderedJson& block, const OrderedJson& source, const std::string& at) {
  const std::string type = string_field(source, "type", at);
  OrderedJson file = OrderedJson::object();
  if (type == "base64") {
    if (const std::string media = text_in(source, "media_type"); !media.empty() && media != "application/pdf") {
      bad_field(at + ".media_type: expected \"application/pdf\", found \"" + media + "\"");
    }
    file["file_data"] = "data:application/pdf;base64," + string_field(source, "data", at);
  } else if (type == "url") {
    file["file_url"] = string_field(source, "url", at);
  } else if (type == "file") {
    file["file_id"] = string_field(source, "file_id", at);
  } else {
    bad_field(at + ".type: expected \"base64\", \"url\", \"text\" or \"content\", found \"" + type + "\"");
  }
  if (const std::string title = text_in(block, "title"); !title.empty()) file["filename"] = title;
  OrderedJson part{{"type", "file"}, {"file", std::move(file)}};
  if (const OrderedJson* choice = find_field(block, "vlcache"); choice != nullptr) part["vlcache"] = *choice;
  return part;
}

// The text or the pages of a document, after its title and what is said about it.
void add_document(const OrderedJson& block, const std::string& where, OrderedJson& parts) {
  const OrderedJson* source = find_field(block, "source");
  const std::string at = where + ".source";
  if (source == nullptr || !source->is_object()) bad_field(at + ": expected an object");
  const std::string type = string_field(*source, "type", at);
  std::string before;
  for (const char* key : {"title", "context"}) {
    if (const std::string text = text_in(block, key); !text.empty()) before += text + "\n";
  }
  if (!before.empty()) parts.push_back(text_part(before));
  if (type == "text") {
    parts.push_back(text_part(string_field(*source, "data", at)));
  } else if (type == "content") {
    add_parts(find_field(*source, "content"), at + ".content", parts);
  } else {
    parts.push_back(file_part(block, *source, at));
  }
}

// The parts of a block that is said: text, an image, a document, a search result.
void add_block(const OrderedJson& block, const std::string& where, OrderedJson& parts) {
  if (!block.is_object()) bad_field(where + ": expected an object");
  const std::string type = string_field(block, "type", where);
  if (type == "text") {
    parts.push_back(text_part(string_field(block, "text", where)));
  } else if (type == "image") {
    parts.push_back(image_part(block, where));
  } else if (type == "document") {
    add_document(block, where, parts);
  } else if (type == "search_result") {
    parts.push_back(text_part(text_in(block, "title") + "\n" + text_in(block, "source") + "\n"));
    add_parts(find_field(block, "content"), where + ".content", parts);
  } else if (type == "tool_reference") {
    parts.push_back(text_part("Tool: " + text_in(block, "tool_name") + "\n"));
  } else {
    bad_field(where + ".type: expected text, image, document, search_result or tool_reference, found \"" + type + "\"");
  }
}

void add_parts(const OrderedJson* content, const std::string& where, OrderedJson& parts) {
  if (content == nullptr) return;
  if (content->is_string()) {
    parts.push_back(text_part(content->get<std::string>()));
    return;
  }
  if (!content->is_array()) bad_field(where + ": expected a string or a list of blocks");
  for (size_t i = 0; i < content->size(); ++i) add_block((*content)[i], item_name(where, i), parts);
}

// A text, or a list of such blocks.
OrderedJson parts_of(const OrderedJson* content, const std::string& where) {
  if (content == nullptr) return "";
  if (content->is_string()) return *content;
  OrderedJson parts = OrderedJson::array();
  add_parts(content, where, parts);
  return parts;
}

bool is_block(const OrderedJson& block, std::string_view type) { return text_in(block, "type") == type; }

OrderedJson call_of(const OrderedJson& block, const std::string& where) {
  const OrderedJson* input = find_field(block, "input");
  if (input != nullptr && !input->is_object()) bad_field(where + ".input: expected an object");
  return {{"id", string_field(block, "id", where)},
          {"type", "function"},
          {"function",
           {{"name", string_field(block, "name", where)}, {"arguments", input == nullptr ? "{}" : input->dump()}}}};
}

bool has_type_end(const OrderedJson& block, std::string_view end) { return text_in(block, "type").ends_with(end); }

// Of a client's tool, or of one that another server ran: web_search_tool_result, mcp_tool_result.
bool is_result(const OrderedJson& block) {
  return is_block(block, "tool_result") || has_type_end(block, "_tool_result");
}
bool is_call(const OrderedJson& block) { return is_block(block, "tool_use") || has_type_end(block, "_tool_use"); }

OrderedJson result_of(const OrderedJson& block, const std::string& where) {
  const OrderedJson* content = find_field(block, "content");
  OrderedJson said;
  if (is_block(block, "tool_result") || is_block(block, "mcp_tool_result")) {
    said = parts_of(content, where + ".content");
  } else {
    said = content == nullptr ? "" : content->dump();
  }
  if (bool_field(block, "is_error", false)) {  // which templates have no place for
    if (said.is_string()) {
      said = "Error: " + said.get<std::string>();
    } else {
      said.insert(said.begin(), text_part("Error: "));
    }
  }
  return {{"role", "tool"}, {"tool_call_id", string_field(block, "tool_use_id", where)}, {"content", std::move(said)}};
}

// The user's text comes after the results of the tools in the same message. Adds one message at least.
void add_user(const OrderedJson& blocks, const std::string& where, OrderedJson& messages) {
  OrderedJson said = OrderedJson::array();
  const size_t n_before = messages.size();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const OrderedJson& block = blocks[i];
    const std::string at = item_name(where, i);
    if (is_result(block)) {
      messages.push_back(result_of(block, at));
    } else {
      add_block(block, at, said);
    }
  }
  if (!said.empty() || messages.size() == n_before) {
    messages.push_back({{"role", "user"}, {"content", std::move(said)}});
  }
}

void add_assistant(const OrderedJson& blocks, const std::string& where, OrderedJson& messages) {
  OrderedJson said = OrderedJson::array(), calls = OrderedJson::array();
  std::string thought;
  const auto flush = [&] {
    OrderedJson message{{"role", "assistant"}, {"content", std::exchange(said, OrderedJson::array())}};
    if (!calls.empty()) message["tool_calls"] = std::exchange(calls, OrderedJson::array());
    if (!thought.empty()) message["reasoning_content"] = std::exchange(thought, "");
    messages.push_back(std::move(message));
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    const OrderedJson& block = blocks[i];
    const std::string at = item_name(where, i);
    if (is_block(block, "redacted_thinking")) continue;
    if (is_block(block, "thinking")) {
      const OrderedJson* text = find_field(block, "thinking");
      if (text != nullptr && text->is_string()) thought += text->get_ref<const std::string&>();
      continue;
    }
    if (is_call(block)) {
      calls.push_back(call_of(block, at));
    } else if (is_result(block)) {  // of a tool that another server ran while it answered
      if (!calls.empty() || !said.empty()) flush();
      messages.push_back(result_of(block, at));
    } else {
      add_block(block, at, said);
    }
  }
  const bool ends_in_result = !messages.empty() && messages.back()["role"] == "tool" && !blocks.empty();
  if (!ends_in_result || !said.empty() || !calls.empty() || !thought.empty()) flush();
}

// Claude Code begins the system text with a line for Anthropic's accounts. A hash in it differs in every request, so no
// prefix after it would ever be found again, and it says nothing to the model: it is left out.
OrderedJson without_billing(OrderedJson content) {
  const auto strip = [](OrderedJson& text) {
    const auto all = text.get<std::string>();
    if (!all.starts_with("x-anthropic-billing-header:")) return false;
    const size_t end = all.find('\n');
    text = end == all.npos ? "" : all.substr(end + 1);
    return end == all.npos;
  };
  if (content.is_string()) {
    strip(content);
  } else {
    std::erase_if(content.get_ref<OrderedJson::array_t&>(),
                  [&](OrderedJson& part) { return part.contains("text") && strip(part["text"]); });
  }
  return content;
}

OrderedJson messages_of(const OrderedJson& body) {
  OrderedJson messages = OrderedJson::array();
  if (const OrderedJson* system = find_field(body, "system")) {
    messages.push_back({{"role", "system"}, {"content", without_billing(parts_of(system, "system"))}});
  }
  const OrderedJson* turns = find_field(body, "messages");
  if (turns == nullptr || !turns->is_array() || turns->empty()) {
    bad_field("messages: expected a list of messages, at least one");
  }
  check_n_messages(turns->size(), "messages");
  for (size_t i = 0; i < turns->size(); ++i) {
    const OrderedJson& turn = (*turns)[i];
    const std::string at = item_name("messages", i);
    if (!turn.is_object()) bad_field(at + ": expected an object");
    const std::string role = string_field(turn, "role", at);
    if (role != "user" && role != "assistant" && role != "system") {
      bad_field(at + ".role: expected \"user\", \"assistant\" or \"system\", found \"" + role + "\"");
    }
    const OrderedJson* content = find_field(turn, "content");
    if (content == nullptr || !content->is_array() || role == "system") {
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
    // Tools that Anthropic's servers run, or that its own models know.
    if (type != nullptr && *type != "custom") continue;
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
  bool left_out = false;
  if (const OrderedJson* tools = find_field(body, "tools")) {
    OrderedJson functions = tools_of(*tools);
    left_out = functions.size() < tools->size();
    if (!functions.empty()) chat["tools"] = std::move(functions);
  }
  const OrderedJson* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  if (!choice->is_object()) bad_field("tool_choice: expected an object");
  const std::string type = string_field(*choice, "type", "tool_choice");
  const OrderedJson* functions = find_field(chat, "tools");
  const auto is_named = [&](const OrderedJson& tool) { return tool["function"]["name"] == text_in(*choice, "name"); };
  const bool has_named = functions != nullptr && std::ranges::any_of(*functions, is_named);
  if (left_out && (functions == nullptr || (type == "tool" && !has_named))) {
    chat["tool_choice"] = functions == nullptr ? "none" : "auto";
  } else if (type == "tool") {
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

// An answer that has begun goes on: the last turn is the assistant's and calls no tools.
void add_continuation(OrderedJson& chat) {
  const OrderedJson& last = chat["messages"].back();
  if (last["role"] == "assistant" && !last.contains("tool_calls") && !last["content"].empty())
    chat["continue_final_message"] = true;
}

// Passed on, with the effort that clients send beside the format.
void add_thinking(const OrderedJson& body, OrderedJson& chat) {
  if (const OrderedJson* thinking = find_field(body, "thinking")) {
    if (!thinking->is_object()) bad_field("thinking: expected an object");
    chat["thinking"] = *thinking;
  }
  const OrderedJson* config = find_field(body, "output_config");
  const OrderedJson* effort = config != nullptr && config->is_object() ? find_field(*config, "effort") : nullptr;
  if (effort != nullptr && effort->is_string() && !chat.contains("thinking")) chat["reasoning_effort"] = *effort;
}

}  // namespace

OrderedJson chat_of_messages(const OrderedJson& body, bool counting) {
  OrderedJson chat;
  const OrderedJson* limit = find_field(body, "max_tokens");
  if (limit == nullptr && !counting) bad_field("max_tokens: expected an integer");
  chat["max_tokens"] = counting ? OrderedJson(1) : *limit;
  copy_common_fields(body, chat);
  copy_constraints(body, chat);
  if (const OrderedJson* stop = find_field(body, "stop_sequences")) chat["stop"] = *stop;
  add_tools(body, chat);
  add_format(body, chat);
  add_thinking(body, chat);
  chat["messages"] = messages_of(body);
  add_continuation(chat);
  return chat;
}

}  // namespace vlcache
