// ChatRequest: what the body of a conversation asks for, whichever endpoint's it is; and the reader of POST
// /v1/chat/completions as OpenAI describes it, with vLLM's additions and our `vlcache` object.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_format.h"
#include "api/messages/image_parts.h"
#include "api/messages/message.h"
#include "api/request_fields.h"
#include "api/thoughts.h"
#include "api/tool_calls.h"

namespace vlcache {

struct ChatRequest {
  std::vector<Message> messages;
  // Those to be stored under their `uuid`, once they have been decoded as images.
  std::vector<NamedImage> named;
  RequestFields fields;
  AnswerFormat format;
  bool has_own_format = false;  // the request sets it, not the server's defaults
  ToolUse tools;
  CallSyntax call_syntax = CallSyntax::kPlain;  // the model's; not part of the body
  std::vector<std::string> notes;               // of the answer's form, for `vlcache.notes`
  bool include_usage = false;                   // at the end of a stream
  bool continuous_usage = false;                // in each event of a stream
  bool continue_final = false;                  // the answer goes on with the last message, an assistant's
  bool open_answer = true;                      // add_generation_prompt
  bool include_thoughts = true;                 // in the answer
  bool split_thoughts = true;                   // from its text, where the server does so
  std::optional<int> max_thought_tokens;
  // Of the model, if thoughts are split off; and whether the prompt has begun one. Not part of the body.
  ThoughtTags thoughts;
  bool in_thought = false;
  nlohmann::ordered_json template_variables;  // chat_template_kwargs; an object, or null

  // Whether what begins as a call can only end as one, by the answer's grammar.
  bool calls_are_held() const {
    return tools.must_call() || (has_call_mark(call_syntax) && format.kind != AnswerFormat::Kind::kText);
  }
  // Those that may be called. Beside them, a form that the request asks for is for answers without calls.
  void set_tools(ToolUse use);
  int n() const { return fields.n.value_or(1); }
  bool stream() const { return fields.stream.value_or(false); }
  bool explain() const { return fields.explain.value_or(false); }
  bool returns_token_ids() const { return fields.return_token_ids.value_or(false); }
  bool has_logprobs() const { return fields.logprobs.value_or(-1) >= 0; }
  // As templates take them: null for none.
  const nlohmann::ordered_json* variables() const {
    return template_variables.is_null() ? nullptr : &template_variables;
  }
};

// What the body leaves out comes from `defaults`. Unknown fields are ignored, as by other servers; documented ones that
// ask for something else are errors (check_peer_fields). The images are not decoded yet. Throws Error(kInput) whose
// message begins with the field's name ("temperature: expected ...").
ChatRequest read_chat_request(const nlohmann::ordered_json& body, const RequestFields& defaults,
                              const ChatLimits& limits);

// Everything but messages: sampling, n, stream, vlcache. Of a body that check_peer_fields has passed.
ChatRequest read_generation_fields(const nlohmann::ordered_json& body, const RequestFields& defaults,
                                   const ChatLimits& limits);

// Parts of other endpoints' readers.

// Fields that all bodies have, under what the endpoint names otherwise (`own`, and a form that its field
// `format.field` gives). Of a body that check_peer_fields has passed.
ChatRequest read_shared_fields(const nlohmann::ordered_json& body, RequestFields own,
                               std::optional<AnswerFormat> format, const RequestFields& defaults);
// Options that all images and videos of such a body share.
MediaOptions read_shared_media_options(const nlohmann::ordered_json& body, const RequestFields& fields);
// A field that has another name in the body, or other bounds than in the table.
void read_as(const char* name, RequestField field, const nlohmann::ordered_json& body, RequestFields& fields);
// max_tokens under another name.
std::optional<int32_t> read_max_tokens(const nlohmann::ordered_json& body, const char* name);
// top_logprobs.
int32_t read_top_logprobs(const nlohmann::ordered_json& body, const ChatLimits& limits);

// Effort, switch and budget of thinking become variables of the template and a bound.
class ThinkingReader {
 public:
  explicit ThinkingReader(ChatRequest& request) : request_(request) {}

  // Fields that all bodies have: reasoning_effort, max_thinking_tokens, enable_thinking, and names that vLLM, SGLang,
  // llama.cpp and Ollama have for them.
  void read_common_fields(const nlohmann::ordered_json& body);
  void read_budget(const nlohmann::ordered_json& object, const char* key, const std::string& where);
  void read_thinking(const nlohmann::ordered_json& thinking);    // Anthropic's
  void read_reasoning(const nlohmann::ordered_json& reasoning);  // that of Responses and OpenRouter
  void set_effort(std::string effort) { effort_ = std::move(effort); }
  void enable(bool enabled) { enabled_ = enabled; }
  void finish();

 private:
  ChatRequest& request_;
  std::string effort_;
  std::optional<bool> enabled_;
};

// A call's arguments are an object, or a text. Throws Error(kInput).
CallPart read_call(std::string id, std::string name, const nlohmann::ordered_json* arguments,
                   const std::string& arguments_where);
// The tool_calls of OpenAI's messages. Throws likewise.
std::vector<CallPart> read_tool_calls(const nlohmann::ordered_json& calls, const std::string& where);
// As messages have it: developer is system, function is tool. Throws Error(kInput) for one that is unknown.
std::string read_role(const std::string& role, const std::string& where);
// Leaves out system messages without content. Throws Error(kInput), beginning with `where`, if none remains.
void drop_empty_messages(std::vector<Message>& messages, const char* where);

}  // namespace vlcache
