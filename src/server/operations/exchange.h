// Exchange: one request, from its arrival to the end of its reply. It adds the headers that all replies have, and
// reports the outcome.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http/http_server.h"
#include "server/operations/api_keys.h"

namespace vlcache {

class Error;

// What the access log records of a request; never the text of prompt or answer.
struct ExchangeReport {
  std::string id, method, path, peer, tenant;
  int status = 0;     // 499: the client went before it got a status
  double ms = 0;      // until the end of the reply
  bool gone = false;  // the client went before that
  bool generates = false;
  int64_t n_prompt = 0, n_cached = 0, n_generated = 0;  // tokens, if it generates
  std::string error;                                    // the message of a reply of 400 and above
  std::vector<std::string> notes;                       // what of its tools the prompt or the grammar leaves out
  std::string bug;                                      // source location of the Error(kBug) that ended it; "": none
};

class Exchange final : public HttpReply {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  using OnEnd = std::function<void(const ExchangeReport&)>;

  // `on_end` is called once, by any thread.
  Exchange(HttpReplyPtr reply, const HttpRequest& request, OnEnd on_end);
  ~Exchange() override;

  const std::string& id() const { return report_.id; }
  const Caller& caller() const { return caller_; }
  Clock::time_point begin_time() const { return begin_; }
  // headers: added to the reply's own. To be called before any part is sent.
  void set_caller(Caller caller, Headers headers);
  // Adds tokens to the report. Called by the thread that ends the reply.
  void count_tokens(int64_t n_prompt, int64_t n_cached, int64_t n_generated);
  // Adds what the client finds in vlcache.notes. To be called before any part is sent.
  void set_notes(std::vector<std::string> notes) { report_.notes = std::move(notes); }
  // As count_tokens: if the error is an Error(kBug), the report says what ended the request. Other errors are for the
  // client alone.
  void note_bug(const Error& error);

  void send(HttpResponse response) override;
  void begin(HttpResponse head, std::string heartbeat) override;
  void write(std::string piece) override { reply_->write(std::move(piece)); }
  void end() override;
  void on_gone(std::function<void()> callback) override;

 private:
  void add_headers(HttpResponse& response);
  void finish();

  HttpReplyPtr reply_;
  OnEnd on_end_;
  Clock::time_point begin_ = Clock::now();
  Headers headers_;
  Caller caller_;
  ExchangeReport report_;
  bool begun_ = false;
  std::atomic<bool> ended_{false};
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
};

using ExchangePtr = std::shared_ptr<Exchange>;

}  // namespace vlcache
