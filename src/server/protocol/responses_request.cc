#include "server/protocol/responses_request.h"

#include <algorithm>
#include <string>

#include "api/json_fields.h"
#include "api/request_fields.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson item_part(const OrderedJson& part, const std::string& where) {
  if (!part.is_object()) bad_field(where + ": expected an object");
  const std::string type = string_field(part, "type", where);
  if (type == "input_text" || type == "output_text" || type == "text") {
    return {{"type", "text"}, {"text", string_field(part, "text", where)}};
  }
  if (type == "refusal") return {{"type", "text"}, {"text", string_field(part, "refusal", where)}};
  if (type == "input_image") {
    if (find_field(part, "image_url") == nullptr && find_field(part, "file_id") != nullptr) {
      return {{"type", "image_url"}, {"uuid", string_field(part, "file_id", where)}};  // named before
    }
    OrderedJson image{{"type", "image_url"}, {"image_url", {{"url", string_field(part, "image_url", where)}}}};
    if (const OrderedJson* detail = find_field(part, "detail")) image["image_url"]["detail"] = *detail;
    if (const OrderedJson* id = find_field(part, "uuid"); id != nullptr) image["uuid"] = *id;
    return image;
  }
  bad_field(where + ".type: expected input_text, input_image or output_text, found \"" + type + "\"");
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

// Consecutive calls, and the assistant's text before them, are one message.
void add_call(const OrderedJson& item, const std::string& where, OrderedJson& messages) {
  const bool follows = !messages.empty() && messages.back()["role"] == "assistant";
  if (!follows) messages.push_back({{"role", "assistant"}, {"content", ""}});
  OrderedJson& calls = messages.back()["tool_calls"];
  calls.push_back(
      {{"id", string_field(item, "call_id", where)},
       {"type", "function"},
       {"function",
        {{"name", string_field(item, "name", where)}, {"arguments", string_field(item, "arguments", where)}}}});
}

void add_item(const OrderedJson& item, const std::string& where, OrderedJson& messages) {
  if (!item.is_object()) bad_field(where + ": expected an object");
  const std::string type = find_field(item, "type") == nullptr ? "message" : string_field(item, "type", where);
  if (type == "reasoning") return;
  if (type == "message") {
    messages.push_back({{"role", string_field(item, "role", where)},
                        {"content", item_parts(find_field(item, "content"), where + ".content")}});
  } else if (type == "function_call") {
    add_call(item, where, messages);
  } else if (type == "function_call_output") {
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", string_field(item, "call_id", where)},
                        {"content", item_parts(find_field(item, "output"), where + ".output")}});
  } else {
    bad_field(where + ".type: expected message, function_call, function_call_output or reasoning, found \"" + type +
              "\"");
  }
}

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
  for (size_t i = 0; i < input->size(); ++i) add_item((*input)[i], item_name("input", i), messages);
  return messages;
}

void add_functions(const OrderedJson& body, OrderedJson& chat) {
  if (const OrderedJson* tools = find_field(body, "tools")) {
    if (!tools->is_array()) bad_field("tools: expected a list");
    chat["tools"] = OrderedJson::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const OrderedJson& tool = (*tools)[i];
      const std::string at = item_name("tools", i);
      if (!tool.is_object()) bad_field(at + ": expected an object");
      if (const std::string type = string_field(tool, "type", at); type != "function") {
        bad_field(at + ".type: expected \"function\", found \"" + type + "\": this server runs no tools itself");
      }
      OrderedJson function = tool;
      function.erase("type");
      chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const OrderedJson* choice = find_field(body, "tool_choice")) {
    chat["tool_choice"] = *choice;
    if (choice->is_object() && find_field(*choice, "name") != nullptr) {
      chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}};
    }
  }
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

OrderedJson chat_of_responses(const OrderedJson& body) {
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (find_field(body, key) != nullptr) {
      bad_field(std::string(key) + ": nothing is remembered between requests; send what was said before as input");
    }
  }
  if (bool_field(body, "background", false)) bad_field("background: answers are given while the client waits");
  OrderedJson chat;
  copy_common_fields(body, chat);
  if (const OrderedJson* limit = find_field(body, "max_output_tokens")) chat["max_tokens"] = *limit;
  add_functions(body, chat);
  add_text_format(body, chat);
  add_include(body, chat);
  chat["messages"] = messages_of_items(body);
  return chat;
}

}  // namespace vlcache
