// Routes, and the way of a chat completion through the server.
#include "server/api.h"

#include <openssl/rand.h>

#include <ctime>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/generation.h"
#include "policy/registry.h"
#include "server/answer.h"
#include "server/chat_reply.h"
#include "server/page.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxPolicies = 256;  // that are remembered

HttpResponse json_response(const OrderedJson& json, int status = 200) {
  return {.status = status,
          .content_type = "application/json",
          .headers = {},
          .body = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

HttpResponse error_response(const Error& error) { return json_response(error_json(error), http_status(error)); }

HttpResponse problem(int status, const std::string& message, const char* type) {
  return json_response({{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}},
                       status);
}

std::string random_id(const char* prefix) {
  unsigned char bytes[12] = {};
  RAND_bytes(bytes, sizeof bytes);
  std::string id = prefix;
  for (const unsigned char b : bytes) {
    id += "0123456789abcdef"[b >> 4];
    id += "0123456789abcdef"[b & 15];
  }
  return id;
}

// The answers of one chat request, which come from the inference thread as they end.
class ChatAnswer : public std::enable_shared_from_this<ChatAnswer> {
 public:
  ChatAnswer(ChatHead head, ChatRequest asked, HttpReplyPtr reply, const Tokenizer& tokenizer)
      : head_(std::move(head)), asked_(std::move(asked)), reply_(std::move(reply)), tokenizer_(tokenizer) {
    if (!asked_.stream || !asked_.tools.may_call()) return;
    readers_.resize(static_cast<size_t>(asked_.n), {{asked_.call_syntax, asked_.tools.names()}, 0});
  }

  void begin() {
    if (!asked_.stream) return;
    reply_->begin(
        {.status = 200, .content_type = "text/event-stream", .headers = {{"cache-control", "no-cache"}}, .body = ""},
        /*heartbeat=*/": waiting\n\n");
    for (int i = 0; i < asked_.n; ++i) {
      reply_->write(event(chunk_json(head_, i, {{"role", "assistant"}, {"content", ""}}, "")));
    }
  }
  void text(int index, std::string_view text) {
    if (!asked_.stream) return;
    if (readers_.empty()) return say(index, {std::string(text), {}});
    say(index, readers_[static_cast<size_t>(index)].reader.push(text));
  }
  // By the inference thread alone.
  void done(int index, GenerateResult result) {
    if (result.error && !error_) error_ = result.error;
    if (asked_.stream && !result.error) {
      if (!readers_.empty()) say(index, readers_[static_cast<size_t>(index)].reader.finish());
      const bool has_calls = !readers_.empty() && readers_[static_cast<size_t>(index)].n_calls > 0;
      reply_->write(event(chunk_json(head_, index, OrderedJson::object(), finish_reason(result, has_calls))));
    }
    results_[index] = std::move(result);
    if (static_cast<int>(results_.size()) == asked_.n) finish();
  }

 private:
  struct Reader {
    ToolCallReader reader;
    int n_calls;
  };
  void say(int index, const ToolCallReader::Piece& piece) {
    if (!piece.text.empty()) reply_->write(event(chunk_json(head_, index, {{"content", piece.text}}, "")));
    if (piece.calls.empty()) return;
    int& n_calls = readers_[static_cast<size_t>(index)].n_calls;
    const OrderedJson delta{{"tool_calls", tool_calls_json(piece.calls, n_calls)}};
    n_calls += static_cast<int>(piece.calls.size());
    reply_->write(event(chunk_json(head_, index, delta, "")));
  }
  void finish() {
    std::vector<GenerateResult> results;
    for (auto& [index, result] : results_) results.push_back(std::move(result));
    if (!asked_.stream) {
      reply_->send(error_ ? error_response(*error_) : json_response(chat_json(head_, asked_, results, tokenizer_)));
      return;
    }
    if (error_) {
      reply_->write(event(error_json(*error_)));
    } else if (asked_.include_usage) {
      OrderedJson last = chunk_json(head_, 0, OrderedJson::object(), "");
      last["choices"] = OrderedJson::array();
      last["usage"] = usage_json(results);
      last["vlcache"] = served_json(results[0], asked_.explain);
      reply_->write(event(last));
    }
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  }

  ChatHead head_;
  ChatRequest asked_;
  HttpReplyPtr reply_;
  const Tokenizer& tokenizer_;
  std::vector<Reader> readers_;  // by answer; none: nothing may be called, or the answer is read as a whole
  std::map<int, GenerateResult> results_;
  std::optional<Error> error_;
};

}  // namespace

Api::Api(const Engine& engine, Inference& inference, const ApiOptions& options)
    : engine_(engine), inference_(inference), options_(options), created_(std::time(nullptr)), forms_(engine) {}

void Api::handle(const HttpRequest& request, const HttpReplyPtr& reply) {
  try {
    if (request.path == "/v1/chat/completions" && request.method == "POST") {
      chat(request, reply);
    } else {
      reply->send(answer(request));
    }
  } catch (const Error& e) {
    reply->send(error_response(e));
  } catch (const std::bad_alloc&) {
    reply->send(problem(503, "out of memory: the machine does not give what this request needs", "server_error"));
  }
}

// What needs no inference.
HttpResponse Api::answer(const HttpRequest& request) const {
  if (std::optional<HttpResponse> page = page_response(request)) return *std::move(page);
  const std::string route = request.method + " " + request.path;
  if (route == "GET /health") return json_response({{"status", "ok"}});
  if (route == "GET /v1/models") {
    const OrderedJson model{
        {"id", options_.model_name}, {"object", "model"}, {"created", created_}, {"owned_by", "vlcache"}};
    return json_response({{"object", "list"}, {"data", {model}}});
  }
  if (route == "GET /v1/cache/stats") {
    const Inference::State state = inference_.state();
    OrderedJson stats = totals_json(state.caches);
    stats["kv"] = {{"bytes", state.kv_bytes}, {"max_bytes", state.kv_max_bytes}};
    stats["requests"] = {{"running", state.n_running}, {"waiting", state.n_waiting}};
    return json_response(stats);
  }
  for (const char* path : {"/health", "/v1/models", "/v1/cache/stats", "/v1/chat/completions"}) {
    if (request.path == path) return problem(405, request.method + " is not for " + path, "invalid_request_error");
  }
  return problem(404, "there is no " + request.path, "invalid_request_error");
}

PolicyPtr Api::policy_of(const std::string& kv, const std::string& budget) {
  const std::lock_guard lock(mutex_);
  const auto known = policies_.find({kv, budget});
  if (known != policies_.end()) return known->second;
  PolicyPtr policy = parse_policy(kv, budget, options_.model_dir);
  if (policies_.size() == kMaxPolicies) policies_.clear();
  return policies_[{kv, budget}] = policy;
}

// One for each answer that is asked for.
std::vector<Request> Api::requests_of(ChatRequest& asked) {
  const PolicyPtr policy = policy_of(asked.kv, asked.kv_budget);
  const ReuseOptions reuse = options_.reuse(asked.reuse, asked.images.size());
  const AnswerForms::Form form = forms_.form(asked.format, asked.tools);
  asked.call_syntax = form.syntax;
  std::vector<Request> requests(static_cast<size_t>(asked.n));
  requests[0].prompt = engine_.prepare_chat(asked.messages, std::move(asked.images),
                                            form.template_has_tools ? &asked.tools.tools : nullptr);
  check_prompt_fits(engine_, *policy, policy->n_seen(requests[0].prompt.shape()), asked.options.max_tokens);
  for (int i = 0; i < asked.n; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    if (i > 0) request.prompt = requests[0].prompt.copy();
    request.policy = policy;
    request.reuse = reuse;
    request.priority = asked.priority;
    request.options = asked.options;
    request.options.sampling.seed += static_cast<uint64_t>(i);
    forms_.apply(form, request);
    request.report_kept = asked.explain && i == 0;
  }
  return requests;
}

void Api::chat(const HttpRequest& request, const HttpReplyPtr& reply) {
  ChatRequest asked = read_chat_request(request.body, options_.defaults, options_.limits);
  std::vector<Request> requests = requests_of(asked);
  auto answer = std::make_shared<ChatAnswer>(ChatHead{random_id("chatcmpl-"), options_.model_name, std::time(nullptr)},
                                             std::move(asked), reply, engine_.tokenizer());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].callbacks.on_text = [answer, i](std::string_view text) { answer->text(static_cast<int>(i), text); };
  }
  auto wanted = std::make_shared<Wanted>();
  reply->on_gone([wanted] { wanted->cancel(); });
  std::vector<Inference::Done> done;
  for (size_t i = 0; i < requests.size(); ++i) {
    done.push_back([answer, i](GenerateResult result) { answer->done(static_cast<int>(i), std::move(result)); });
  }
  if (!inference_.submit(std::move(requests), wanted, std::move(done), [answer] { answer->begin(); })) {
    HttpResponse full = problem(429, "too many requests wait already; try again later", "rate_limit_error");
    full.headers.emplace_back("retry-after", "1");
    reply->send(std::move(full));
  }
}

}  // namespace vlcache
