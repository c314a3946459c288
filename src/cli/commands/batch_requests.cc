#include "cli/commands/batch_requests.h"

#include <ctime>
#include <iterator>
#include <string_view>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/conversation.h"
#include "base/file_url.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/prompt/prompt_media.h"
#include "engine/prompt/video_input.h"
#include "io/tokenizer/tokenizer.h"
#include "server/http/json_reply.h"
#include "server/http/random_id.h"
#include "server/protocol/completion.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kMostLogprobs = 1 << 20;  // as in lines of our own

OrderedJson batch_reply(const OrderedJson& custom_id, int status, OrderedJson body, OrderedJson error) {
  return {{"id", random_id("batch_req_")},
          {"custom_id", custom_id},
          {"response", {{"status_code", status}, {"request_id", random_id("req_")}, {"body", std::move(body)}}},
          {"error", std::move(error)}};
}

// The file that a file:// URL names.
std::vector<std::byte> bytes_at(const std::string& url, const std::string& where) {
  const std::optional<std::string> path = path_of_file_url(url);
  if (!path) bad_field(where + ": expected the path of a file");
  try {
    return read_image_file(*path);
  } catch (const Error& e) {
    throw Error(e.code(), where + ": " + e.what());
  }
}

}  // namespace

BatchReader::BatchReader(Engine& engine, RequestBuilder& builder, RequestFields defaults, std::string model)
    : engine_(engine), builder_(builder), defaults_(std::move(defaults)), model_(std::move(model)) {
  limits_.max_logprobs = kMostLogprobs;
  limits_.read_url = [](const std::string& url, const std::string& where, FileKind kind, const auto&) {
    return is_file_url(url) ? bytes_at(url, where) : decode_data_uri(url, where, kind);
  };
  limits_.read_document = [this](const DocumentRequest& request) { return engine_.media().read_document(request); };
  limits_.read_video = [this](VideoRequest request) {
    engine_.media().check_takes_videos();
    return input_video(std::move(request)).input;
  };
  AnswerForms::Form form;
  builder_.allow_thought(form, std::nullopt);
  thought_tags_ = form.thoughts;
}

AnswerHead BatchReader::head(const char* id_prefix, const Prompt& prompt) const {
  return {.id = random_id(id_prefix), .model = model_, .created = std::time(nullptr), .n_prompt = prompt.n_tokens()};
}

BatchRequest BatchReader::read(BatchLine line) {
  ResponsesPlan plan;
  if (line.endpoint == "completions") return complete(line);
  if (line.endpoint == "messages") {
    return converse(read_messages_request(line.body, defaults_, limits_), "msg_", line, plan);
  }
  if (line.endpoint == "responses") {
    if (find_field(line.body, "previous_response_id") != nullptr) {
      bad_field("previous_response_id: expected none in a batch; send the conversation as input");
    }
    ChatRequest asked = read_responses_request(line.body, defaults_, limits_, plan);
    return converse(std::move(asked), "resp_", line, plan);
  }
  return converse(read_chat_request(line.body, defaults_, limits_), "chatcmpl-", line, plan);
}

// As the server does with a conversation of any endpoint (Api::converse).
BatchRequest BatchReader::converse(ChatRequest asked, const char* id_prefix, const BatchLine& line,
                                   const ResponsesPlan& plan) {
  builder_.check_options(asked.fields);
  const AnswerForms::Form form = form_of(builder_, asked, thought_tags_);
  Prompt prompt = prompt_of(engine_, asked, form);
  AnswerHead top = head(id_prefix, prompt);
  if (asked.returns_token_ids()) top.prompt_tokens = prompt.tokens;
  BatchRequest request{.requests = builder_.requests(std::move(prompt), asked.fields, form), .style = nullptr};
  if (line.endpoint == "messages") {
    request.style = make_messages_style(top, asked);
  } else if (line.endpoint == "responses") {
    request.style = make_responses_style(top, asked, line.body, plan, engine_.tokenizer());
  } else {
    request.style = make_chat_style(top, asked, engine_.tokenizer());
  }
  return request;
}

BatchRequest BatchReader::complete(const BatchLine& line) {
  const CompletionRequest asked = read_completion_request(line.body.dump(), defaults_, limits_);
  if (asked.n_prompt_logprobs || (asked.echo && asked.fields.has_logprobs())) {
    bad_field("prompt_logprobs: scores of a prompt are not supported in a batch; the server has them");
  }
  builder_.check_options(asked.fields.fields);
  const AnswerForms::Form form = builder_.form(asked.fields.format);
  BatchRequest request;
  std::vector<CompletionPrompt> prompts;
  for (const CompletionRequest::Text& given : asked.prompts) {
    Prompt prompt = given.tokens.empty() ? engine_.prepare_raw(given.text, {}, {}, asked.add_special_tokens)
                                         : engine_.prepare_tokens(given.tokens);
    prompts.push_back(
        {.tokens = prompt.tokens,
         .text = engine_.tokenizer().decode(prompt.tokens, asked.fields.fields.skip_special_tokens.value_or(true)),
         .scores = nullptr});
    std::vector<Request> more = builder_.requests(std::move(prompt), asked.fields.fields, form);
    std::move(more.begin(), more.end(), std::back_inserter(request.requests));
  }
  request.style = make_completion_style(head("cmpl-", {}), asked, std::move(prompts), engine_.tokenizer());
  return request;
}

OrderedJson batch_answer(const OrderedJson& custom_id, OrderedJson body) {
  return batch_reply(custom_id, 200, std::move(body), nullptr);
}

OrderedJson batch_failure(const OrderedJson& custom_id, const Error& error) {
  OrderedJson body = error_json(error);
  OrderedJson shown{{"code", body["error"]["code"]}, {"message", error.what()}};
  return batch_reply(custom_id, http_status(error), std::move(body), std::move(shown));
}

}  // namespace vlcache
