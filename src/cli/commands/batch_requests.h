// Answers lines of OpenAI's batches in `run --requests` as the server answers their bodies.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/request_builder.h"
#include "base/error.h"
#include "cli/flags/batch_line.h"
#include "engine/request.h"
#include "server/protocol/answer_style.h"

namespace vlcache {

struct BatchRequest {
  std::vector<Request> requests;       // one for each answer, in their order
  std::unique_ptr<AnswerStyle> style;  // writes the reply's body
};

class BatchReader {
 public:
  // Both outlive this object. defaults: of fields that bodies leave out. model: the name in replies.
  BatchReader(Engine& engine, RequestBuilder& builder, RequestFields defaults, std::string model);

  // Reads images from data URIs and file:// URLs. Throws Error that begins with the body's field.
  BatchRequest read(BatchLine line);

 private:
  BatchRequest converse(ChatRequest asked, const char* id_prefix, const BatchLine& line, const ResponsesPlan& plan);
  BatchRequest complete(const BatchLine& line);
  AnswerHead head(const char* id_prefix, const Prompt& prompt) const;

  Engine& engine_;
  RequestBuilder& builder_;
  const RequestFields defaults_;
  const std::string model_;
  ChatLimits limits_;
  ThoughtTags thought_tags_;
};

// A line of OpenAI's batch output: {id, custom_id, response: {status_code, request_id, body}, error}. Of a failure, the
// body is the server's, and `error` has its code and message.
nlohmann::ordered_json batch_answer(const nlohmann::ordered_json& custom_id, nlohmann::ordered_json body);
nlohmann::ordered_json batch_failure(const nlohmann::ordered_json& custom_id, const Error& error);

}  // namespace vlcache
