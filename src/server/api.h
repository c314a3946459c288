// The server's routes: what a request asks for, given to the inference thread, and its answer.
#pragma once

#include <functional>
#include <string>

#include "server/answer_forms.h"
#include "server/chat_request.h"
#include "server/http_server.h"
#include "server/inference.h"

namespace vlcache {

struct ApiOptions {
  std::string model_name;           // of /v1/models; requests may name any
  std::filesystem::path model_dir;  // whose files policies may read
  ChatRequest defaults;             // of what requests leave out
  ChatLimits limits;
  std::function<ReuseOptions(std::string_view how, size_t n_images)> reuse;  // what vlcache.reuse means
};

// Handlers are called by any thread of an HttpServer, at once by several.
class Api {
 public:
  Api(const Engine& engine, Inference& inference, const ApiOptions& options);

  void handle(const HttpRequest& request, const HttpReplyPtr& reply);

 private:
  HttpResponse answer(const HttpRequest& request) const;
  void chat(const HttpRequest& request, const HttpReplyPtr& reply);
  std::vector<Request> requests_of(ChatRequest& asked);
  PolicyPtr policy_of(const std::string& kv, const std::string& budget);

  const Engine& engine_;
  Inference& inference_;
  ApiOptions options_;
  int64_t created_;
  AnswerForms forms_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, PolicyPtr> policies_;  // by kv and kv_budget
};

}  // namespace vlcache
