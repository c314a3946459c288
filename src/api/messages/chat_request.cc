// Clients differ in the fields that they leave out, send as null, or add.
#include "api/messages/chat_request.h"

#include <algorithm>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/image_parts.h"
#include "api/request_builder.h"
#include "base/json.h"
#include "base/json_text.h"
#include "base/ordered_json.h"
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

// Forms of answers as vLLM, SGLang and llama.cpp name them, beside response_format.
constexpr const char* kFormatFields[] = {"guided_json",  "json_schema",    "guided_choice",
                                         "guided_regex", "guided_grammar", "regex",
                                         "ebnf",         "grammar",        "structured_outputs"};
// Known fields that would change the answer, but are not supported, are refused: ignoring them would be worse.
constexpr const char* kUnsupportedFields[] = {
    "functions", "audio",    "guided_whitespace_pattern", "structural_tag", "grammar_lazy",   "truncate_prompt_tokens",
    "bad_words", "mirostat", "xtc_probability",           "dry_multiplier", "use_beam_search"};

void refuse_unsupported(const OrderedJson& body) {
  for (const char* key : kUnsupportedFields) {
    const OrderedJson* value = find_field(body, key);
    const bool set = value != nullptr && *value != false && *value != 0 && !(value->is_string() && *value == "") &&
                     !(value->is_structured() && value->empty());
    if (set) bad_field(std::string(key) + ": not supported by this server");
  }
  for (const char* key : {"typical_p", "tfs_z", "length_penalty"}) {
    const OrderedJson* value = find_field(body, key);
    if (value != nullptr && *value != 1) bad_field(std::string(key) + ": expected 1; others are not supported");
  }
}

// The functions that may be called. Beside them, a form that the request asks for is for answers without calls.
void read_tools(const OrderedJson& body, ChatRequest& request) {
  request.tools = read_tool_use(body);
  if (!request.tools.may_call()) return;
  if (!request.has_own_format) request.format = {};  // a default form is for answers, not calls
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

// Effort, switches and budgets of thinking, as OpenAI, Anthropic, OpenRouter, vLLM, SGLang and DashScope name them,
// become variables of the template and a bound.
void read_thinking(const OrderedJson& body, ChatRequest& request) {
  std::string effort = string(body, "reasoning_effort", "");
  std::optional<bool> enabled;
  const auto read_budget = [&](const OrderedJson& object, const char* key, const std::string& where) {
    const OrderedJson* value = find_field(object, key);
    if (value == nullptr) return;
    const bool good = value->is_number_integer() && (*value >= -1) && (*value <= INT32_MAX);
    if (!good) bad_field(where + key + ": expected an integer >= 0, or -1 for no bound");
    if (*value >= 0) request.max_thought_tokens = value->get<int>();
  };
  for (const char* key : {"max_thinking_tokens", "thinking_budget", "thinking_token_budget", "max_reasoning_tokens"}) {
    read_budget(body, key, "");
  }
  if (find_field(body, "enable_thinking") != nullptr) enabled = bool_field(body, "enable_thinking", true);
  if (const OrderedJson* thinking = find_field(body, "thinking"); thinking != nullptr) {
    if (thinking->is_boolean()) {
      enabled = thinking->get<bool>();
    } else if (thinking->is_object()) {
      enabled = string(*thinking, "type", "enabled") != "disabled";
      read_budget(*thinking, "budget_tokens", "thinking.");
    } else {
      bad_field("thinking: expected true, false or {\"type\": \"enabled\"}");
    }
  }
  if (const OrderedJson* reasoning = find_field(body, "reasoning"); reasoning != nullptr && reasoning->is_object()) {
    effort = string(*reasoning, "effort", effort);
    read_budget(*reasoning, "max_tokens", "reasoning.");
    if (find_field(*reasoning, "enabled") != nullptr) enabled = bool_field(*reasoning, "enabled", true);
    if (bool_field(*reasoning, "exclude", false)) request.include_thoughts = false;
  }
  if (!bool_field(body, "include_reasoning", true)) request.include_thoughts = false;
  if (effort == "none") enabled = false;
  if (!effort.empty() && effort != "none" && !enabled) enabled = true;
  OrderedJson& variables = request.template_variables;
  const auto set = [&](const char* name, const OrderedJson& value) {
    if (variables.is_null()) variables = OrderedJson::object();
    if (!variables.contains(name)) variables[name] = value;
  };
  if (!effort.empty()) set("reasoning_effort", effort);
  if (!enabled) return;
  set("enable_thinking", *enabled);
  set("thinking", *enabled);
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

// Options that all images and videos of the request share.
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

// The thought of an earlier answer.
void read_thought(const OrderedJson& message, OrderedJson& out) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const OrderedJson* thought = find_field(message, key);
    if (thought == nullptr || !thought->is_string() || thought->get_ref<const std::string&>().empty()) continue;
    out["reasoning_content"] = *thought;
    return;
  }
}

// Mistral's parts of type "thinking", a text or a list of parts of text.
void take_thinking_parts(OrderedJson& content, OrderedJson& message) {
  if (!content.is_array()) return;
  std::string thought;
  const auto is_thinking = [](const OrderedJson& part) { return text_in(part, "type") == "thinking"; };
  for (const OrderedJson& part : content) {
    if (!is_thinking(part)) continue;
    const OrderedJson said = part.value("thinking", OrderedJson(""));
    if (said.is_string()) thought += said.get<std::string>();
    for (const OrderedJson& inner : said.is_array() ? said : OrderedJson::array()) {
      thought += text_in(inner, "text");
    }
  }
  OrderedJson rest = OrderedJson::array();
  for (OrderedJson& part : content) {
    if (!is_thinking(part)) rest.push_back(std::move(part));
  }
  content = std::move(rest);
  if (!thought.empty() && find_field(message, "reasoning_content") == nullptr) message["reasoning_content"] = thought;
}

void read_content(OrderedJson& content, const std::string& where, ImageParts& images) {
  if (content.is_string()) return;
  if (content.is_null()) {  // an assistant's message with nothing but tool calls
    content = "";
    return;
  }
  if (!content.is_array()) bad_field(where + ": expected a string or a list of parts");
  OrderedJson parts = OrderedJson::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const std::string at = where + "[" + std::to_string(i) + "]";
    const std::string type = text_in(part, "type");
    if (type == "text" && part.contains("text") && part["text"].is_string()) {
      parts.push_back({{"type", "text"}, {"text", part["text"]}});
    } else if (type == "refusal" && part.contains("refusal") && part["refusal"].is_string()) {
      parts.push_back({{"type", "text"}, {"text", part["refusal"]}});
    } else if (type == "image_url") {
      images.add_image(part, at, parts);
    } else if (type == "file") {
      images.add_file(part, at, parts);
    } else if (type == "video_url" || type == "video" || type == "input_video") {
      images.add_video(part, at, parts);
    } else {
      bad_field(at + ": expected a part of type \"text\", \"image_url\", \"video_url\" or \"file\", found " +
                shown_json(part));
    }
  }
  content = std::move(parts);
}

OrderedJson read_messages(OrderedJson messages, ImageParts& images) {
  if (!messages.is_array() || messages.empty()) bad_field("messages: expected a list of messages, at least one");
  check_n_messages(messages.size(), "messages");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    OrderedJson& message = messages[i];
    if (!message.is_object()) bad_field(where + ": expected an object");
    std::string role = string(message, "role", "");
    if (role == "developer") role = "system";
    if (role == "function") role = "tool";  // as OpenAI had it before tools
    if (role == "user" && find_field(message, "content") == nullptr) {
      bad_field(where + ".content: expected a string or a list of parts");
    }
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      bad_field(where + ".role: expected system, developer, user, assistant or tool, found \"" + role + "\"");
    }
    OrderedJson content = message.contains("content") ? std::move(message["content"]) : OrderedJson();
    if (role == "assistant") take_thinking_parts(content, message);
    read_content(content, where + ".content", images);
    if (role == "system" && content.empty()) continue;
    if (role == "system" && content.is_string() && content.get_ref<const std::string&>().empty()) continue;
    out.push_back({{"role", role}, {"content", std::move(content)}});
    if (role == "assistant") read_thought(message, out.back());
    if (const OrderedJson* call = find_field(message, "function_call"); call != nullptr && role == "assistant") {
      OrderedJson function = *call;  // a new member of the message may move it
      message["tool_calls"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    const OrderedJson* calls = role == "assistant" ? find_field(message, "tool_calls") : nullptr;
    if (calls != nullptr && !calls->empty()) out.back()["tool_calls"] = read_tool_calls(*calls, where + ".tool_calls");
    if (role == "tool") out.back()["tool_call_id"] = string(message, "tool_call_id", "");
    if (role == "tool" && find_field(message, "name") != nullptr) out.back()["name"] = string(message, "name", "");
  }
  if (out.empty()) bad_field("messages: expected one that is not empty");
  return out;
}

// A format of `type`, "json", "json_object", "choice", "regex" or "grammar", that the field `name` gives.
OrderedJson format_of(const std::string& type, const OrderedJson& given, const std::string& name) {
  if (type == "json_object") return {{"type", "json_object"}};
  if (type != "json") return {{"type", type}, {type, given}, {"field", name}};
  OrderedJson schema = given;
  if (given.is_string()) schema = parse_ordered_or_discard(given.get_ref<const std::string&>());
  if (!schema.is_object()) bad_field(name + ": expected a JSON schema, an object");
  return {{"type", "json_schema"}, {"json_schema", {{"schema", std::move(schema)}}}};
}

// The body with such a form as its response_format.
OrderedJson with_format(OrderedJson body) {
  std::string taken = find_field(body, "response_format") != nullptr ? "response_format" : "";
  const auto set = [&](const std::string& name, const std::string& type, const OrderedJson& given) {
    if (!taken.empty()) bad_field(name + ": not together with " + taken);
    taken = name;
    body["response_format"] = format_of(type, given, name);
  };
  if (const OrderedJson* format = find_field(body, "response_format"); format != nullptr && format->is_object()) {
    const OrderedJson* schema = find_field(*format, "schema");
    if (schema != nullptr && format->value("type", OrderedJson()) == "json_object") {
      body["response_format"] = format_of("json", OrderedJson(*schema), "response_format.schema");
    }
  }
  const auto is_set = [](const OrderedJson* value) { return value != nullptr && *value != "" && *value != false; };
  constexpr std::pair<const char*, const char*> kFields[] = {
      {"guided_json", "json"}, {"json_schema", "json"},       {"guided_choice", "choice"}, {"guided_regex", "regex"},
      {"regex", "regex"},      {"guided_grammar", "grammar"}, {"ebnf", "grammar"},         {"grammar", "grammar"}};
  for (const auto& [name, type] : kFields) {
    if (is_set(find_field(body, name))) set(name, type, OrderedJson(body[name]));
  }
  const OrderedJson* structured = find_field(body, "structured_outputs");
  if (structured == nullptr) return body;
  if (!structured->is_object()) bad_field("structured_outputs: expected an object");
  const OrderedJson fields = *structured;
  for (const auto& [key, value] : fields.items()) {
    if (value.is_null() || value == false || key.starts_with("disable_")) continue;
    const bool known = key == "json" || key == "json_object" || key == "choice" || key == "regex" || key == "grammar";
    if (!known) {
      bad_field("structured_outputs." + key +
                ": not supported by this server; json, json_object, choice, regex and grammar are");
    }
    set("structured_outputs." + key, key, value);
  }
  return body;
}

// llama.cpp's names.
void read_other_names(const OrderedJson& body, RequestFields& fields) {
  if (!fields.repetition_penalty && find_field(body, "repeat_penalty") != nullptr) {
    read_as("repeat_penalty", request_field("repetition_penalty"), body, fields);
  }
  if (!fields.max_tokens && find_field(body, "n_predict") != nullptr) {
    fields.max_tokens = unusual_max_tokens(body, "n_predict");
    if (!fields.max_tokens) read_as("n_predict", request_field("max_tokens"), body, fields);
  }
}

}  // namespace

ChatRequest read_generation_fields(const OrderedJson& given, const RequestFields& defaults, const ChatLimits& limits) {
  refuse_unsupported(given);
  const bool has_other_format =
      find_field(given, "response_format") != nullptr ||
      std::ranges::any_of(kFormatFields, [&](const char* name) { return find_field(given, name) != nullptr; });
  OrderedJson with;
  if (has_other_format) {
    for (const auto& [key, value] : given.items()) {
      if (key != "messages" && key != "prompt") append_member(with, key, value);
    }
    with = with_format(std::move(with));
  }
  const OrderedJson& body = has_other_format ? with : given;
  ChatRequest request;
  RequestFields& fields = request.fields = read_body_fields(body);
  if (find_field(body, "max_completion_tokens") != nullptr) {
    fields.max_tokens = unusual_max_tokens(body, "max_completion_tokens");
    if (!fields.max_tokens) read_as("max_completion_tokens", request_field("max_tokens"), body, fields);
  }
  read_other_names(body, fields);
  read_logprobs(body, limits, fields);
  if (fields.n.value_or(1) > limits.max_answers) {
    bad_field("n: expected an integer from 1 to " + std::to_string(limits.max_answers));
  }
  request.has_own_format = !fields.response_format.is_null();
  fields = over(std::move(fields), defaults);
  request.format = read_answer_format(fields.response_format);
  if (const OrderedJson* options = find_field(body, "stream_options"); options != nullptr && options->is_object()) {
    request.include_usage = bool_field(*options, "include_usage", false);
  }
  return request;
}

void copy_constraints(const OrderedJson& from, OrderedJson& to) {
  const auto copy = [&](const char* key) {
    if (const OrderedJson* value = find_field(from, key); value != nullptr) to[key] = *value;
  };
  std::ranges::for_each(kFormatFields, copy);
  std::ranges::for_each(kUnsupportedFields, copy);
}

ChatRequest read_chat_request(std::string_view body, const RequestFields& defaults, const ChatLimits& limits) {
  return chat_request_of(parse_body(body), defaults, limits);
}

ChatRequest chat_request_of(OrderedJson json, const RequestFields& defaults, const ChatLimits& limits) {
  for (const char* key : {"echo", "prompt_logprobs"}) {
    const OrderedJson* value = find_field(json, key);
    if (value != nullptr && *value != false && *value != 0) {
      bad_field(std::string(key) + ": not supported in conversations; /v1/completions has it");
    }
  }
  ChatRequest request = read_generation_fields(json, defaults, limits);
  read_tools(json, request);
  read_continuation(json, request);
  OrderedJson messages = json.contains("messages") ? std::move(json["messages"]) : OrderedJson();
  request.template_variables = read_template_variables(json);
  read_thinking(json, request);
  ImageParts images(limits, read_media_options(json, request.fields), request);
  request.messages = read_messages(std::move(messages), images);
  return request;
}

}  // namespace vlcache
