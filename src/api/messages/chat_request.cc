// Clients differ in the fields that they leave out, send as null, or add.
#include "api/messages/chat_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/any_part.h"
#include "api/peer_fields.h"
#include "api/request_builder.h"
#include "base/json.h"
#include "base/json_text.h"
#include "base/request_limits.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string string(const OrderedJson& object, const char* key, const std::string& fallback) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) bad_field(std::string(key) + ": expected a string");
  return value->get<std::string>();
}

// Chat completions request log probabilities with a switch and a number.
void read_logprobs(const OrderedJson& body, const ChatLimits& limits, RequestFields& fields) {
  const int32_t n_top = read_top_logprobs(body, limits);
  const bool logprobs = bool_field(body, "logprobs", false);
  if (n_top > 0 && !logprobs) bad_field("top_logprobs: expected logprobs to be true with it");
  if (find_field(body, "logprobs") != nullptr) fields.logprobs = logprobs ? n_top : -1;
}

// Forms of answers as vLLM, SGLang and llama.cpp name them, beside response_format.
constexpr std::pair<const char*, const char*> kFormatFields[] = {
    {"guided_json", "json"}, {"json_schema", "json"},       {"guided_choice", "choice"}, {"guided_regex", "regex"},
    {"regex", "regex"},      {"guided_grammar", "grammar"}, {"ebnf", "grammar"},         {"grammar", "grammar"}};
// Adds such a form to the one that another field gives, if any: there can be one.
void read_format_fields(const OrderedJson& body, std::string taken, std::optional<AnswerFormat>& format) {
  const auto set = [&](const std::string& name, const std::string& type, const OrderedJson& given) {
    if (!taken.empty()) bad_field(name + ": not together with " + taken);
    taken = name;
    format = make_answer_format(type, given, name);
  };
  for (const auto& [name, type] : kFormatFields) {
    const OrderedJson* value = find_field(body, name);
    if (value != nullptr && *value != "" && *value != false) set(name, type, *value);
  }
  const OrderedJson* form = find_field(body, "format");  // Ollama's
  if (form != nullptr && form->is_string() && *form != "" && *form != "json") {
    bad_field("format: expected \"json\" or a JSON schema");
  }
  if (form != nullptr && (*form == "json" || (form->is_object() && !form->empty()))) {
    set("format", form->is_object() ? "json" : "json_object", *form);
  }
  const OrderedJson* structured = find_field(body, "structured_outputs");
  if (structured == nullptr) return;
  if (!structured->is_object()) bad_field("structured_outputs: expected an object");
  for (const auto& [key, value] : structured->items()) {
    if (value.is_null() || value == false || key.starts_with("disable_")) continue;
    const bool known = key == "json" || key == "json_object" || key == "choice" || key == "regex" || key == "grammar";
    if (!known) {
      bad_field("structured_outputs." + key +
                ": not supported by this server; json, json_object, choice, regex and grammar are");
    }
    set("structured_outputs." + key, key, value);
  }
}

// The fields over those of the server; a form that they name is the request's own.
ChatRequest finish_fields(RequestFields fields, std::optional<AnswerFormat> format, const RequestFields& defaults) {
  ChatRequest request;
  request.has_own_format = format || !fields.response_format.is_null();
  request.fields = over(std::move(fields), defaults);
  request.format = format ? *std::move(format) : read_answer_format(request.fields.response_format);
  return request;
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

// Thinking as OpenAI, Anthropic, OpenRouter, vLLM, SGLang and DashScope name it.
void read_thinking(const OrderedJson& body, ChatRequest& request) {
  ThinkingReader reader(request);
  reader.read_common_fields(body);
  if (const OrderedJson* thinking = find_field(body, "thinking"); thinking != nullptr) {
    if (thinking->is_boolean()) {
      reader.enable(thinking->get<bool>());
    } else if (thinking->is_object()) {
      reader.read_thinking(*thinking);
    } else {
      bad_field("thinking: expected true, false or {\"type\": \"enabled\"}");
    }
  }
  if (const OrderedJson* reasoning = find_field(body, "reasoning")) reader.read_reasoning(*reasoning);
  reader.finish();
}

// Whether the answer goes on with the last message: as vLLM, Mistral and DeepSeek name it.
void read_continuation(const OrderedJson& body, ChatRequest& request) {
  request.open_answer = bool_field(body, "add_generation_prompt", true);
  request.continue_final = bool_field(body, "continue_final_message", false);
  const OrderedJson* messages = find_field(body, "messages");
  const OrderedJson* last =
      messages != nullptr && messages->is_array() && !messages->empty() ? &messages->back() : nullptr;
  const bool assistant = last != nullptr && last->is_object() && string(*last, "role", "") == "assistant";
  if (assistant && (bool_field(*last, "prefix", false) || bool_field(*last, "partial", false)))
    request.continue_final = true;
  if (!request.continue_final) return;
  if (find_field(body, "add_generation_prompt") != nullptr && request.open_answer) {
    bad_field("add_generation_prompt: expected false with continue_final_message");
  }
  if (!assistant) bad_field("continue_final_message: expected the last message to be an assistant's");
  if (request.format.kind != AnswerFormat::Kind::kText || request.tools.must_call()) {
    bad_field("continue_final_message: not together with response_format or a forced call");
  }
}

MediaOptions read_media_options(const OrderedJson& body, const RequestFields& fields) {
  MediaOptions options;
  ImageOptions& images = options.images;
  images = image_options(fields);
  OrderedJson settings;
  if (const OrderedJson* given = find_field(body, "mm_processor_kwargs"); given != nullptr) {
    if (!given->is_object()) bad_field("mm_processor_kwargs: expected an object");
    settings = *given;
  }
  options.videos = take_video_choice(body, settings);
  if (!settings.empty()) images.settings = settings.dump();
  return options;
}

// Mistral's part of type "thinking", a text or a list of parts of text.
std::optional<std::string> thought_in(const Message& message, const OrderedJson& part) {
  if (message.role != "assistant" || text_in(part, "type") != "thinking") return std::nullopt;
  std::string thought = text_in(part, "thinking");
  const OrderedJson* said = find_field(part, "thinking");
  for (const OrderedJson& inner : said != nullptr && said->is_array() ? *said : OrderedJson::array()) {
    thought += text_in(inner, "text");
  }
  return thought;
}

// The thought of an earlier answer.
std::string thought_of(const OrderedJson& message, std::string of_parts) {
  if (!of_parts.empty() && find_field(message, "reasoning_content") == nullptr) return of_parts;
  std::string thought = text_in(message, "reasoning_content");
  for (const char* key : {"reasoning", "thinking"}) {  // vLLM's, Ollama's
    if (thought.empty()) thought = text_in(message, key);
  }
  return thought;
}

void read_part(const OrderedJson& part, const std::string& at, ImageParts& images, std::vector<Part>& parts) {
  const std::string type = text_in(part, "type");
  if (type == "image_url" && (find_field(part, "image_url") != nullptr || find_field(part, "uuid") != nullptr)) {
    images.add_image_url(part, at, parts);
  } else if (!read_any_part(part, at, images, parts)) {
    if (type == "file") bad_field(at + ".file: expected an object with file_data");
    bad_field(at + ": expected a part of type \"text\", \"image_url\", \"video_url\" or \"file\", found " +
              shown_json(part));
  }
}

// Adds the content's parts; returns the thought among them.
std::string read_content(const OrderedJson& content, const std::string& where, ImageParts& images, Message& message) {
  std::string thought;
  message.plain = !content.is_array();
  if (message.plain && !content.is_string()) bad_field(where + ": expected a string or a list of parts");
  if (message.plain) message.parts.emplace_back(TextPart{content.get<std::string>()});
  for (size_t i = 0; i < (message.plain ? 0 : content.size()); ++i) {
    if (const std::optional<std::string> part = thought_in(message, content[i])) {
      thought += *part;
    } else {
      read_part(content[i], item_name(where, i), images, message.parts);
    }
  }
  return thought;
}

// `call`: that which has the function, beside an id.
CallPart read_function(const OrderedJson& call, const char* key, const std::string& where) {
  const OrderedJson* function = call.is_object() ? find_field(call, key) : nullptr;
  const std::string at = where + "." + key;
  if (function == nullptr || !function->is_object()) bad_field(at + ": expected {\"name\": ..., \"arguments\": ...}");
  std::string name = text_in(*function, "name");  // other servers allow other names
  if (name.empty()) bad_field(at + ".name: expected a name");
  return read_call(text_in(call, "id"), std::move(name), find_field(*function, "arguments"), at + ".arguments");
}

// Ollama's images beside the text, before which they stand: base64, or URLs.
void read_images(const OrderedJson& given, const std::string& where, ImageParts& images, Message& message) {
  const OrderedJson* list = find_field(given, "images");
  if (list == nullptr || list->empty() || *list == false || *list == 0 || *list == "") return;
  const std::string at = where + ".images";
  if (!list->is_array()) bad_field(at + ": expected a list of images, each as base64 or a data URI");
  if (message.role != "user") bad_field(at + ": expected none in a message of the role " + message.role);
  for (size_t i = 0; i < list->size(); ++i) {
    const OrderedJson& image = (*list)[i];
    const std::string place = item_name(at, i);
    if (!image.is_string()) bad_field(place + ": expected an image as base64 or a data URI");
    images.add_image({.where = place, .id_where = place, .data = uri_or_base64(image.get_ref<const std::string&>())},
                     message.parts);
  }
}

Message read_message(const OrderedJson& given, const std::string& where, ImageParts& images) {
  if (!given.is_object()) bad_field(where + ": expected an object");
  Message message{.role = string(given, "role", ""), .plain = true};
  const OrderedJson* content = find_field(given, "content");
  if (message.role == "user" && content == nullptr) bad_field(where + ".content: expected a string or a list of parts");
  message.role = read_role(message.role, where);
  read_images(given, where, images, message);
  const bool has_images = !message.parts.empty();
  std::string thought;  // without content: an assistant's message with nothing but tool calls
  if (content != nullptr) thought = read_content(*content, where + ".content", images, message);
  if (has_images) message.plain = false;
  if (message.role == "assistant") {
    message.parts.emplace_back(ThoughtPart{thought_of(given, std::move(thought))});
    if (const OrderedJson* calls = find_field(given, "tool_calls"); calls != nullptr && !calls->empty()) {
      std::ranges::move(read_tool_calls(*calls, where + ".tool_calls"), std::back_inserter(message.parts));
    }
    // As OpenAI had it before tools.
    if (find_field(given, "function_call") != nullptr) {
      message.parts.emplace_back(read_function(given, "function_call", where));
    }
  }
  if (message.role == "tool") {
    message.call_id = string(given, "tool_call_id", "");
    for (const char* key : {"name", "tool_name"}) {  // the latter is Ollama's
      if (!message.tool && find_field(given, key) != nullptr) message.tool = string(given, key, "");
    }
  }
  return message;
}

std::vector<Message> read_messages(const OrderedJson* given, ImageParts& images) {
  if (given == nullptr || !given->is_array() || given->empty()) {
    bad_field("messages: expected a list of messages, at least one");
  }
  check_n_messages(given->size(), "messages");
  std::vector<Message> messages;
  for (size_t i = 0; i < given->size(); ++i) {
    messages.push_back(read_message((*given)[i], item_name("messages", i), images));
  }
  drop_empty_messages(messages, "messages");
  return messages;
}

// Ollama's options, to which the fields beside them are preferred.
RequestFields read_options(const OrderedJson& body) {
  RequestFields fields;
  const OrderedJson* options = find_field(body, "options");
  if (options == nullptr || !options->is_object()) return fields;
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty",
                          "frequency_penalty", "repetition_penalty"}) {
    RequestField field = request_field(key);
    if (field.name == std::string_view("repetition_penalty")) field.name = "repeat_penalty";
    read_field(field, {.object = *options, .where = "options."}, fields);
  }
  const OrderedJson* most = find_field(*options, "num_predict");
  if (most == nullptr) return fields;
  fields.max_tokens = *most == -2 ? INT32_MAX : unusual_max_tokens(*options, "num_predict").value_or(-1);
  if (*fields.max_tokens >= 0) return fields;
  RequestField field = request_field("max_tokens");
  field.name = "num_predict";
  read_field(field, {.object = *options, .where = "options."}, fields);
  return fields;
}

// Names of llama.cpp, TGI and Ollama.
void read_other_names(const OrderedJson& body, RequestFields& fields) {
  for (const char* key : {"n_predict", "max_new_tokens"}) {
    if (!fields.max_tokens) fields.max_tokens = read_max_tokens(body, key);
  }
  fields = over(std::move(fields), read_options(body));
}

// Where a stream reports usage.
void read_stream_options(const OrderedJson& body, ChatRequest& request) {
  const OrderedJson* options = find_field(body, "stream_options");
  if (options == nullptr || !options->is_object()) return;
  request.include_usage = bool_field(*options, "include_usage", false);
  request.continuous_usage = bool_field(*options, "continuous_usage_stats", false);
}

}  // namespace

void ChatRequest::set_tools(ToolUse use) {
  tools = std::move(use);
  if (tools.may_call() && !has_own_format) format = {};  // a default form is for answers, not calls
}

void read_as(const char* name, RequestField field, const OrderedJson& body, RequestFields& fields) {
  field.name = name;
  read_field(field, {.object = body, .where = ""}, fields);
}

std::optional<int32_t> read_max_tokens(const OrderedJson& body, const char* name) {
  RequestFields fields;
  fields.max_tokens = unusual_max_tokens(body, name);
  if (!fields.max_tokens) read_as(name, request_field("max_tokens"), body, fields);
  return fields.max_tokens;
}

int32_t read_top_logprobs(const OrderedJson& body, const ChatLimits& limits) {
  RequestField top = request_field("logprobs");
  top.low = 0;
  top.high = limits.max_logprobs;
  RequestFields alternatives;
  read_as("top_logprobs", top, body, alternatives);
  return alternatives.logprobs.value_or(0);
}

ChatRequest read_generation_fields(const OrderedJson& body, const RequestFields& defaults, const ChatLimits& limits) {
  std::optional<AnswerFormat> format;
  read_format_fields(body, find_field(body, "response_format") != nullptr ? "response_format" : "", format);
  RequestFields fields = read_body_fields(body);
  if (const std::optional<int32_t> max = read_max_tokens(body, "max_completion_tokens")) fields.max_tokens = max;
  read_other_names(body, fields);
  read_logprobs(body, limits, fields);
  if (fields.n.value_or(1) > limits.max_answers) {
    bad_field("n: expected an integer from 1 to " + std::to_string(limits.max_answers));
  }
  ChatRequest request = finish_fields(std::move(fields), std::move(format), defaults);
  read_stream_options(body, request);
  return request;
}

ChatRequest read_shared_fields(const OrderedJson& body, RequestFields own, std::optional<AnswerFormat> format,
                               const RequestFields& defaults) {
  std::string taken = format ? format->field.substr(0, format->field.rfind('.')) : "";
  // OpenAI's names of chat completions, where the endpoint has no others in the body.
  read_field(request_field("response_format"), {.object = body, .where = ""}, own);
  if (!own.response_format.is_null() && !taken.empty()) bad_field("response_format: not together with " + taken);
  if (!own.response_format.is_null()) taken = "response_format";
  if (!own.stop) read_field(request_field("stop"), {.object = body, .where = ""}, own);
  for (const char* key : {"max_completion_tokens", "max_tokens"}) {
    if (!own.max_tokens) own.max_tokens = read_max_tokens(body, key);
  }
  read_format_fields(body, std::move(taken), format);
  ChatRequest request = finish_fields(over(std::move(own), read_common_fields(body)), std::move(format), defaults);
  request.template_variables = read_template_variables(body);
  return request;
}

MediaOptions read_shared_media_options(const OrderedJson& body, const RequestFields& fields) {
  return read_media_options(body, fields);
}

void ThinkingReader::read_common_fields(const OrderedJson& body) {
  effort_ = string(body, "reasoning_effort", "");
  for (const char* key : {"max_thinking_tokens", "thinking_budget", "thinking_token_budget", "thinking_budget_tokens",
                          "max_reasoning_tokens"}) {
    read_budget(body, key, "");
  }
  if (find_field(body, "enable_thinking") != nullptr) enabled_ = bool_field(body, "enable_thinking", true);
  if (const OrderedJson* think = find_field(body, "think"); think != nullptr && think->is_string()) {
    effort_ = think->get<std::string>();
  } else if (think != nullptr) {
    enabled_ = bool_field(body, "think", true);
  }
  if (!bool_field(body, "include_reasoning", true)) request_.include_thoughts = false;
  if (!bool_field(body, "separate_reasoning", true)) request_.split_thoughts = false;
  const std::string form = string(body, "reasoning_format", "");
  if (form == "none") request_.split_thoughts = false;
  if (!form.empty() && form != "none" && form != "auto" && !form.starts_with("deepseek")) {
    bad_field("reasoning_format: expected none, auto, deepseek or deepseek-legacy, found \"" + form + "\"");
  }
}

void ThinkingReader::read_budget(const OrderedJson& object, const char* key, const std::string& where) {
  const OrderedJson* value = find_field(object, key);
  if (value == nullptr) return;
  const bool good = value->is_number_integer() && (*value >= -1) && (*value <= INT32_MAX);
  if (!good) bad_field(where + key + ": expected an integer >= 0, or -1 for no bound");
  if (*value >= 0) request_.max_thought_tokens = value->get<int>();
}

void ThinkingReader::read_thinking(const OrderedJson& thinking) {
  enabled_ = string(thinking, "type", "enabled") != "disabled";
  read_budget(thinking, "budget_tokens", "thinking.");
}

void ThinkingReader::read_reasoning(const OrderedJson& reasoning) {
  if (!reasoning.is_object()) return;
  effort_ = string(reasoning, "effort", effort_);
  read_budget(reasoning, "max_tokens", "reasoning.");
  if (find_field(reasoning, "enabled") != nullptr) enabled_ = bool_field(reasoning, "enabled", true);
  if (bool_field(reasoning, "exclude", false)) request_.include_thoughts = false;
}

void ThinkingReader::finish() {
  if (effort_ == "none") enabled_ = false;
  if (!effort_.empty() && effort_ != "none" && !enabled_) enabled_ = true;
  OrderedJson& variables = request_.template_variables;
  const auto set = [&](const char* name, const OrderedJson& value) {
    if (variables.is_null()) variables = OrderedJson::object();
    if (!variables.contains(name)) variables[name] = value;
  };
  if (!effort_.empty()) set("reasoning_effort", effort_);
  if (!enabled_) return;
  set("enable_thinking", *enabled_);
  set("thinking", *enabled_);
}

CallPart read_call(std::string id, std::string name, const OrderedJson* arguments, const std::string& arguments_where) {
  const bool good = arguments == nullptr || arguments->is_string() || arguments->is_object();
  if (!good) bad_field(arguments_where + ": expected a JSON object, as text");
  return {std::move(id), std::move(name), arguments == nullptr ? OrderedJson("{}") : *arguments};
}

std::vector<CallPart> read_tool_calls(const OrderedJson& calls, const std::string& where) {
  if (!calls.is_array()) bad_field(where + ": expected a list of calls");
  std::vector<CallPart> out;
  for (size_t i = 0; i < calls.size(); ++i) out.push_back(read_function(calls[i], "function", item_name(where, i)));
  return out;
}

std::string read_role(const std::string& role, const std::string& where) {
  if (role == "developer") return "system";
  if (role == "function") return "tool";  // as OpenAI had it before tools
  if (role == "system" || role == "user" || role == "assistant" || role == "tool") return role;
  bad_field(where + ".role: expected system, developer, user, assistant or tool, found \"" + role + "\"");
}

void drop_empty_messages(std::vector<Message>& messages, const char* where) {
  if (messages.empty()) bad_field(std::string(where) + ": expected a list of messages, at least one");
  std::erase_if(messages, [](const Message& message) {
    if (message.role != "system" || message.parts.empty()) return message.role == "system";
    const auto* text = std::get_if<TextPart>(&message.parts[0]);
    return message.plain && text != nullptr && text->text.empty();
  });
  if (messages.empty()) bad_field(std::string(where) + ": expected one that is not empty");
}

ChatRequest read_chat_request(const OrderedJson& body, const RequestFields& defaults, const ChatLimits& limits) {
  check_peer_fields(body, PeerEndpoint::kChat);
  ChatRequest request = read_generation_fields(body, defaults, limits);
  request.set_tools(read_tool_use(body));
  read_continuation(body, request);
  request.template_variables = read_template_variables(body);
  read_thinking(body, request);
  ImageParts images(limits, read_media_options(body, request.fields), request.fields);
  request.messages = read_messages(find_field(body, "messages"), images);
  request.named = images.take_named();
  return request;
}

}  // namespace vlcache
