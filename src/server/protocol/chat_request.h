// The body of POST /v1/chat/completions, as OpenAI describes it, with what vLLM adds and a `vlcache` object of ours.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_format.h"
#include "api/request_fields.h"
#include "api/tool_calls.h"
#include "engine/prompt/picture.h"
#include "server/protocol/named_images.h"

namespace vlcache {

struct NamedPicture {
  NamedImages::Name name;
  NamedImages::Bytes bytes;
  std::string where;  // the name, in errors
};

struct ChatRequest {
  nlohmann::ordered_json messages;       // as chat templates take them; pictures as {"type": "image"}
  std::vector<EncodedPicture> pictures;  // in the order of their parts
  // Those of them that are to be known by their `uuid`, once it has turned out that they are pictures.
  std::vector<NamedPicture> named;
  RequestFields fields;
  AnswerFormat format;
  ToolUse tools;
  CallSyntax call_syntax = CallSyntax::kPlain;  // the model's, which the body does not say
  bool include_usage = false;                   // in a stream
  nlohmann::ordered_json template_variables;    // chat_template_kwargs; an object, or null

  int n() const { return fields.n.value_or(1); }
  bool stream() const { return fields.stream.value_or(false); }
  bool explain() const { return fields.explain.value_or(false); }
  bool has_logprobs() const { return fields.logprobs.value_or(-1) >= 0; }
  // As templates take them: null for none.
  const nlohmann::ordered_json* variables() const {
    return template_variables.is_null() ? nullptr : &template_variables;
  }
};

// What a request may ask for at most.
struct ChatLimits {
  size_t max_images = 64;
  ImageLimits image{.max_pixels = 64'000'000};
  // Bytes of a picture's URL, which errors call `where`; none: of data URIs alone.
  std::function<std::vector<std::byte>(const std::string& url, const std::string& where)> read_image;
  int max_answers = 16;   // n
  int max_logprobs = 20;  // alternatives of a token
  // Pictures that parts name by their `uuid`, of this caller; null: such a name is not looked at.
  NamedImages* named_images = nullptr;
  std::string caller;
};

// What the body leaves out comes from `defaults`. Fields that nobody here knows are let pass, as other servers do;
// known ones that ask for what cannot be done are errors. The pictures are not decoded yet. Throws Error(kInput) whose
// message begins with the field's name ("temperature: expected ...").
ChatRequest read_chat_request(std::string_view body, const RequestFields& defaults, const ChatLimits& limits);
// Of a body that was parsed: parse_body's, or one that says the same of another endpoint.
ChatRequest chat_request_of(nlohmann::ordered_json body, const RequestFields& defaults, const ChatLimits& limits);

// All of it but messages: sampling, n, stream, vlcache.
ChatRequest read_generation_fields(const nlohmann::ordered_json& body, const RequestFields& defaults,
                                   const ChatLimits& limits);

}  // namespace vlcache
