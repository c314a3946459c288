// The server's routes: what a request asks for, given to the inference thread, and its answer.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/request_builder.h"
#include "server/http/http_server.h"
#include "server/operations/access.h"
#include "server/operations/cache_routes.h"
#include "server/operations/exchange.h"
#include "server/operations/inference.h"
#include "server/operations/metrics.h"
#include "server/protocol/answer_style.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/named_images.h"

namespace vlcache {

struct ApiOptions {
  std::string model_name;           // of /v1/models; requests may name any
  std::filesystem::path model_dir;  // whose files policies may read
  RequestFields defaults;           // of what requests leave out
  ChatLimits limits;
  const ReuseChoice* reuse = nullptr;            // what vlcache.reuse means
  std::chrono::milliseconds request_timeout{0};  // of a request, waiting included; 0: none
  int64_t max_prompt_tokens = 0;                 // of a request; 0: as many as there is room for
  int64_t named_image_bytes = 0;                 // of pictures that requests name by a uuid
  int n_parallel = 0;                            // as /props says
  const Access* access = nullptr;                // null: everybody may ask
  Exchange::OnEnd on_end;                        // is told of every request; may be none
  std::function<size_t()> n_connections;         // for /metrics; may be none
};

// Handlers are called by any thread of an HttpServer, at once by several.
class Api {
 public:
  Api(const Engine& engine, Inference& inference, const ApiOptions& options);

  void handle(const HttpRequest& request, const HttpReplyPtr& reply);
  // Has the engine answer something, so that nobody waits for what is slow once only; /health is 503 until then.
  void warm_up();

 private:
  void route(const HttpRequest& request, const ExchangePtr& exchange);
  HttpResponse answer(const HttpRequest& request) const;
  HttpResponse health() const;
  nlohmann::ordered_json model() const;
  void chat(const HttpRequest& request, const ExchangePtr& exchange);
  void complete(const HttpRequest& request, const ExchangePtr& exchange);
  void messages(const HttpRequest& request, const ExchangePtr& exchange);
  void responses(const HttpRequest& request, const ExchangePtr& exchange);
  HttpResponse count_tokens(const HttpRequest& request, const ExchangePtr& exchange);
  using StyleMaker = std::function<std::unique_ptr<AnswerStyle>(const AnswerHead& head, const ChatRequest& asked)>;
  void converse(ChatRequest asked, const char* id_prefix, const StyleMaker& make_style, const ExchangePtr& exchange);
  void answer_all(std::vector<Request> requests, std::unique_ptr<AnswerStyle> style, const ChatRequest& asked,
                  const ExchangePtr& exchange);
  // What there is to be called about one request.
  struct Asked {
    Request request;
    Inference::Done done;
    bool repeats = false;  // the prompt before it
  };
  void submit(std::vector<Asked> asked, std::chrono::milliseconds timeout, const std::function<void()>& accepted,
              const ExchangePtr& exchange);
  ChatLimits limits_of(const ExchangePtr& exchange);
  AnswerForms::Form form_of(ChatRequest& asked);
  Prompt prompt_of(ChatRequest& asked, const AnswerForms::Form& form);
  std::vector<Request> requests_of(const ChatRequest& asked, const AnswerForms::Form& form, Prompt prompt);

  const Engine& engine_;
  Inference& inference_;
  ApiOptions options_;
  int64_t created_;
  RequestBuilder builder_;
  Metrics metrics_;
  NamedImages named_images_;
  CacheRoutes cache_routes_;
  std::atomic<bool> warm_{false};
};

}  // namespace vlcache
