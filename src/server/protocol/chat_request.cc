// Clients differ in the fields that they leave out, send as null, or add.
#include "server/protocol/chat_request.h"

#include "api/json_fields.h"
#include "server/protocol/image_parts.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string string(const OrderedJson& object, const char* key, const std::string& fallback) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) bad_field(std::string(key) + ": expected a string");
  return value->get<std::string>();
}

// A field that has another name in the body, or another bound here.
void read_as(const char* name, RequestField field, const OrderedJson& body, RequestFields& fields) {
  field.name = name;
  read_field(field, {.object = body, .where = ""}, fields);
}

// Chat completions request log probabilities with a switch and a number.
void read_logprobs(const OrderedJson& body, const ChatLimits& limits, RequestFields& fields) {
  RequestField top = request_field("logprobs");
  top.low = 0;
  top.high = limits.max_logprobs;
  RequestFields alternatives;
  read_as("top_logprobs", top, body, alternatives);
  const bool logprobs = bool_field(body, "logprobs", false);
  const int32_t n_top = alternatives.logprobs.value_or(0);
  if (n_top > 0 && !logprobs) bad_field("top_logprobs: expected logprobs to be true with it");
  if (find_field(body, "logprobs") != nullptr) fields.logprobs = logprobs ? n_top : -1;
}

// A known field that would change the answer, but is not supported, is refused: ignoring it would be worse.
void refuse_unsupported(const OrderedJson& body) {
  for (const char* key : {"functions", "audio"}) {
    const OrderedJson* value = find_field(body, key);
    if (value != nullptr && !value->empty()) bad_field(std::string(key) + ": not supported by this server");
  }
}

// The functions that may be called, which exclude other forms of answers.
void read_tools(const OrderedJson& body, ChatRequest& request) {
  request.tools = read_tool_use(body);
  if (!request.tools.may_call()) return;
  if (find_field(body, "response_format") == nullptr) request.format = {};  // a default form is for answers, not calls
  if (request.format.kind != AnswerFormat::Kind::kText) {
    bad_field("response_format: not together with tools; send tool_choice \"none\" for an answer without calls");
  }
}

// Further variables of the template; those that the request sets elsewhere are refused.
OrderedJson read_template_variables(const OrderedJson& body) {
  const OrderedJson* variables = find_field(body, "chat_template_kwargs");
  if (variables == nullptr) return nullptr;
  if (!variables->is_object()) bad_field("chat_template_kwargs: expected an object");
  for (const char* key : {"messages", "tools", "documents", "add_generation_prompt", "chat_template"}) {
    if (variables->contains(key)) bad_field("chat_template_kwargs." + std::string(key) + ": not for a request to say");
  }
  return *variables;
}

// Options that all images of the request share.
ImageOptions read_image_options(const OrderedJson& body, const RequestFields& fields) {
  ImageOptions options;
  options.min_tokens = fields.min_image_tokens.value_or(0);
  options.max_tokens = fields.max_image_tokens.value_or(0);
  if (options.max_tokens > 0 && options.min_tokens > options.max_tokens) {
    bad_field("min_image_tokens: expected at most max_image_tokens");
  }
  const OrderedJson* settings = find_field(body, "mm_processor_kwargs");
  if (settings == nullptr) return options;
  if (!settings->is_object()) bad_field("mm_processor_kwargs: expected an object");
  if (!settings->empty()) options.settings = settings->dump();
  return options;
}

void read_content(OrderedJson& content, const std::string& where, ImageParts& images) {
  if (content.is_string()) return;
  if (content.is_null()) {  // an assistant's message with nothing but tool calls
    content = "";
    return;
  }
  if (!content.is_array()) bad_field(where + ": expected a string or a list of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    OrderedJson& part = content[i];
    const std::string at = where + "[" + std::to_string(i) + "]";
    const std::string type = part.is_object() ? part.value("type", "") : "";
    if (type == "text" && part.contains("text") && part["text"].is_string()) {
      part = {{"type", "text"}, {"text", part["text"]}};
    } else if (type == "image_url") {
      images.take(part, at);
    } else {
      bad_field(at + ": expected a part of type \"text\" or \"image_url\", found \"" + type + "\"");
    }
  }
}

OrderedJson read_messages(OrderedJson messages, ImageParts& images) {
  if (!messages.is_array() || messages.empty()) bad_field("messages: expected a list of messages, at least one");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    OrderedJson& message = messages[i];
    if (!message.is_object()) bad_field(where + ": expected an object");
    std::string role = string(message, "role", "");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      bad_field(where + ".role: expected system, developer, user, assistant or tool, found \"" + role + "\"");
    }
    OrderedJson content = message.contains("content") ? std::move(message["content"]) : OrderedJson();
    read_content(content, where + ".content", images);
    if (role == "system" && content.empty()) continue;
    if (role == "system" && content.is_string() && content.get_ref<const std::string&>().empty()) continue;
    out.push_back({{"role", role}, {"content", std::move(content)}});
    const OrderedJson* calls = role == "assistant" ? find_field(message, "tool_calls") : nullptr;
    if (calls != nullptr && !calls->empty()) out.back()["tool_calls"] = read_tool_calls(*calls, where + ".tool_calls");
    if (role == "tool") out.back()["tool_call_id"] = string(message, "tool_call_id", "");
    if (role == "tool" && find_field(message, "name") != nullptr) out.back()["name"] = string(message, "name", "");
  }
  if (out.empty()) bad_field("messages: expected one that is not empty");
  return out;
}

}  // namespace

ChatRequest read_generation_fields(const OrderedJson& body, const RequestFields& defaults, const ChatLimits& limits) {
  ChatRequest request;
  RequestFields& fields = request.fields = read_body_fields(body);
  if (find_field(body, "max_completion_tokens") != nullptr) {
    read_as("max_completion_tokens", request_field("max_tokens"), body, fields);
  }
  read_logprobs(body, limits, fields);
  if (fields.n.value_or(1) > limits.max_answers) {
    bad_field("n: expected an integer from 1 to " + std::to_string(limits.max_answers));
  }
  fields = over(std::move(fields), defaults);
  request.format = read_answer_format(fields.response_format);
  if (const OrderedJson* options = find_field(body, "stream_options"); options != nullptr && options->is_object()) {
    request.include_usage = bool_field(*options, "include_usage", false);
  }
  return request;
}

ChatRequest read_chat_request(std::string_view body, const RequestFields& defaults, const ChatLimits& limits) {
  return chat_request_of(parse_body(body), defaults, limits);
}

ChatRequest chat_request_of(OrderedJson json, const RequestFields& defaults, const ChatLimits& limits) {
  refuse_unsupported(json);
  ChatRequest request = read_generation_fields(json, defaults, limits);
  read_tools(json, request);
  OrderedJson messages = json.contains("messages") ? std::move(json["messages"]) : OrderedJson();
  request.template_variables = read_template_variables(json);
  ImageParts images(limits, read_image_options(json, request.fields), request);
  request.messages = read_messages(std::move(messages), images);
  return request;
}

}  // namespace vlcache
