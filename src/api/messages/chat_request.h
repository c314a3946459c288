// ChatRequest: the body of POST /v1/chat/completions as OpenAI describes it, with vLLM's additions and our `vlcache`
// object.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_format.h"
#include "api/messages/data_uri.h"
#include "api/messages/named_images.h"
#include "api/request_fields.h"
#include "api/thoughts.h"
#include "api/tool_calls.h"
#include "base/request_limits.h"
#include "engine/prompt/document_reader.h"
#include "engine/prompt/encoded_image.h"
#include "engine/prompt/video_input.h"

namespace vlcache {

struct NamedImage {
  NamedImages::Name name;
  NamedImages::Bytes bytes;
  std::string where;  // the name, in errors
};

struct ChatRequest {
  nlohmann::ordered_json messages;   // as chat templates take them; images and pages as {"type": "image"}
  std::vector<EncodedImage> images;  // in the order of their parts
  std::vector<InputVideo> videos;    // likewise; in messages {"type": "video"}
  // Those to be stored under their `uuid`, once they have been decoded as images.
  std::vector<NamedImage> named;
  RequestFields fields;
  AnswerFormat format;
  bool has_own_format = false;  // the request sets it, not the server's defaults
  ToolUse tools;
  CallSyntax call_syntax = CallSyntax::kPlain;  // the model's; not part of the body
  std::vector<std::string> notes;               // of the answer's form, for `vlcache.notes`
  bool include_usage = false;                   // in a stream
  bool continue_final = false;                  // the answer goes on with the last message, an assistant's
  bool open_answer = true;                      // add_generation_prompt
  bool include_thoughts = true;                 // in the answer
  std::optional<int> max_thought_tokens;
  // Of the model, if thoughts are split off; and whether the prompt has begun one. Not part of the body.
  ThoughtTags thoughts;
  bool in_thought = false;
  nlohmann::ordered_json template_variables;  // chat_template_kwargs; an object, or null

  // Whether what begins as a call can only end as one, by the answer's grammar.
  bool calls_are_held() const {
    return tools.must_call() || (has_call_mark(call_syntax) && format.kind != AnswerFormat::Kind::kText);
  }
  int n() const { return fields.n.value_or(1); }
  bool stream() const { return fields.stream.value_or(false); }
  bool explain() const { return fields.explain.value_or(false); }
  bool has_logprobs() const { return fields.logprobs.value_or(-1) >= 0; }
  // As templates take them: null for none.
  const nlohmann::ordered_json* variables() const {
    return template_variables.is_null() ? nullptr : &template_variables;
  }
};

// What a request may ask for, at most.
struct ChatLimits {
  size_t max_images = 64;
  ImageLimits image{.max_pixels = 64'000'000};
  // Whether work for the request is in vain; asked while it is done. Empty: never.
  std::function<bool()> cancelled;
  // Returns the bytes at the URL of an image or a PDF, which errors call `where`; empty: data URIs alone are accepted.
  std::function<std::vector<std::byte>(const std::string& url, const std::string& where, FileKind kind,
                                       const std::function<bool()>& cancelled)>
      read_url;
  // Draws the pages of a PDF; empty: PDFs are refused.
  std::function<std::vector<EncodedImage>(DocumentRequest request)> read_document;
  // Probes a video; empty: videos are refused.
  std::function<InputVideo(VideoRequest request)> read_video;
  int max_answers = kMaxAnswers;  // n
  int max_logprobs = 20;          // alternatives of a token
  // This caller's images with names, for parts with a `uuid`; null: a `uuid` is ignored.
  NamedImages* named_images = nullptr;
  std::string caller;
};

// What the body leaves out comes from `defaults`. Unknown fields are ignored, as by other servers; known ones that ask
// for what is not supported are errors. The images are not decoded yet. Throws Error(kInput) whose message begins with
// the field's name ("temperature: expected ...").
ChatRequest read_chat_request(std::string_view body, const RequestFields& defaults, const ChatLimits& limits);
// Reads a parsed body: parse_body's, or another endpoint's that was translated.
ChatRequest chat_request_of(nlohmann::ordered_json body, const RequestFields& defaults, const ChatLimits& limits);

// Copies the fields that restrict or change an answer, those that are not supported among them: for the bodies of other
// endpoints.
void copy_constraints(const nlohmann::ordered_json& from, nlohmann::ordered_json& to);

// Everything but messages: sampling, n, stream, vlcache.
ChatRequest read_generation_fields(const nlohmann::ordered_json& body, const RequestFields& defaults,
                                   const ChatLimits& limits);

}  // namespace vlcache
