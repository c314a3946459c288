// Api: the server's routes. It turns HTTP requests into requests for the inference thread and sends their answers.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/messages/chat_request.h"
#include "api/messages/named_images.h"
#include "api/messages/uploads.h"
#include "api/request_builder.h"
#include "server/http/http_server.h"
#include "server/operations/access.h"
#include "server/operations/cache_routes.h"
#include "server/operations/exchange.h"
#include "server/operations/inference.h"
#include "server/operations/metrics.h"
#include "server/protocol/answer_style.h"
#include "server/protocol/file_routes.h"
#include "server/protocol/response_store.h"

namespace vlcache {

struct ApiOptions {
  std::string model_name;             // reported by /v1/models; requests may name any
  const ModelFiles* model = nullptr;  // whose files policies may read; null: none
  RequestFields defaults;             // of fields that requests leave out
  ChatLimits limits;
  const ReuseChoice* reuse = nullptr;            // what vlcache.reuse means
  std::chrono::milliseconds request_timeout{0};  // of a request, time in the queue included; 0: none
  int64_t max_prompt_tokens = 0;                 // of a request; 0: as many as fit
  int64_t response_store_bytes = 0;              // of responses that requests go on with; 0: none are kept
  int64_t named_image_bytes = 0;                 // of images that requests name by a uuid
  UploadOptions uploads;                         // files of /v1/files
  bool split_thoughts = true;                    // off the text of answers
  int n_parallel = 0;                            // as reported by /props
  std::string version;                           // as reported by /version
  bool generic_tools = true;                     // as AnswerForms has it
  const Access* access = nullptr;                // null: every request is allowed
  Exchange::OnEnd on_end;                        // called for every request; may be empty
  std::function<size_t()> n_connections;         // for /metrics; may be empty
};

// Any thread of an HttpServer may call the handlers, several at once.
class Api {
 public:
  Api(const Engine& engine, Inference& inference, const ApiOptions& options);

  void handle(const HttpRequest& request, const HttpReplyPtr& reply);
  // Runs one-time work of the engine, so that no client waits for it; /health is 503 until then.
  void warm_up();
  // The handler of a port for operators: health, metrics and version, without access checks.
  void operate(const HttpRequest& request, const HttpReplyPtr& reply);
  // /health/ready says 503 from now on, so that load balancers send no more; all else goes on.
  void set_leaving() { leaving_ = true; }
  // What workers still do for requests (PDFs, videos, fetches, tokenising) ends, with 503, as if their clients had
  // left.
  void stop_work() { stopped_ = true; }
  // Routes for HttpOptions::is_urgent: those of `operations`, which answer at once.
  static bool is_operation(std::string_view method, std::string_view path);

  // The handlers of routes (routes.cc). Each sends its reply by the exchange, or returns it.
  void chat(const HttpRequest& request, const ExchangePtr& exchange);
  void complete(const HttpRequest& request, const ExchangePtr& exchange);
  void messages(const HttpRequest& request, const ExchangePtr& exchange);
  void responses(const HttpRequest& request, const ExchangePtr& exchange);
  HttpResponse count_tokens(const HttpRequest& request, const ExchangePtr& exchange);
  HttpResponse tokenize(const HttpRequest& request, const ExchangePtr& exchange);
  HttpResponse detokenize(const HttpRequest& request, const ExchangePtr& exchange) const;
  HttpResponse files(const HttpRequest& request, const ExchangePtr& exchange);
  HttpResponse models() const;
  HttpResponse model_of(const HttpRequest& request, const ExchangePtr& exchange) const;
  HttpResponse props() const;
  HttpResponse loads() const;  // what a load balancer weighs
  HttpResponse live() const;
  HttpResponse health() const;
  HttpResponse metrics();
  HttpResponse version() const;
  HttpResponse cache_stats() const;
  void cache_entries(const HttpRequest& request, const ExchangePtr& exchange);
  void cache_pin(const HttpRequest& request, const ExchangePtr& exchange);
  void cache_drop(const HttpRequest& request, const ExchangePtr& exchange);
  void cache_reset(const HttpRequest& request, const ExchangePtr& exchange);

 private:
  HttpResponse failure(const Error& error, const HttpRequest& request);
  nlohmann::ordered_json model() const;
  using StyleMaker = std::function<std::unique_ptr<AnswerStyle>(const AnswerHead& head, const ChatRequest& asked)>;
  void converse(ChatRequest asked, const ChatLimits& limits, const char* id_prefix, const StyleMaker& make_style,
                const ExchangePtr& exchange);
  void answer_all(std::vector<Request> requests, std::unique_ptr<AnswerStyle> style, const ChatRequest& asked,
                  const ExchangePtr& exchange);
  // A request and the callback for its answer.
  struct Asked {
    Request request;
    Inference::Done done;
    bool repeats = false;  // has the prompt of the request before it
  };
  void submit(std::vector<Asked> asked, std::chrono::milliseconds timeout, const std::function<void()>& accepted,
              const ExchangePtr& exchange);
  ChatLimits limits_of(const ExchangePtr& exchange);
  std::function<bool()> reading(const std::function<bool()>& cancelled);
  std::function<bool()> cancelled_with(const ExchangePtr& exchange);
  PromptLimits prompt_limits(const RequestFields& fields, std::function<bool()> cancelled);
  template <typename Prepare>
  Prompt within_limits(const RequestFields& fields, const Prepare& prepare) const;
  void recall(nlohmann::ordered_json& body, const std::string& owner) const;
  Prompt prepare(ChatRequest& asked, const AnswerForms::Form& form, const PromptLimits& limits);
  std::vector<Request> requests_of(const ChatRequest& asked, const AnswerForms::Form& form, Prompt prompt);

  const Engine& engine_;
  Inference& inference_;
  ApiOptions options_;
  int64_t created_;
  RequestBuilder builder_;
  ThoughtTags thought_tags_;  // to be split off; none: they stay in the text
  Metrics metrics_;
  NamedImages named_images_;
  ResponseStore responses_;
  Uploads uploads_;
  FileRoutes file_routes_;
  CacheRoutes cache_routes_;
  std::atomic<int> n_documents_ = 0;  // that are being read
  std::atomic<bool> warm_{false}, leaving_{false}, stopped_{false};
};

}  // namespace vlcache
