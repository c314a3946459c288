#include "server/operations/exchange.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/http/random_id.h"

namespace vlcache {
namespace {

constexpr size_t kMaxId = 128, kMaxPath = 200;

// A client's own id is accepted if any log can hold it.
bool is_id(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == ':' || c == '/';
  };
  return !text.empty() && text.size() <= kMaxId && std::ranges::all_of(text, plain);
}

// Of a body as OpenAI and Anthropic write it.
std::string error_message(const std::string& body) {
  constexpr size_t kMaxMessage = 500;
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("error") || !json["error"].is_object()) return "";
  const auto message = json["error"].find("message");
  return message != json["error"].end() && message->is_string() ? message->get<std::string>().substr(0, kMaxMessage)
                                                                : "";
}

}  // namespace

Exchange::Exchange(HttpReplyPtr reply, const HttpRequest& request, OnEnd on_end)
    : reply_(std::move(reply)), on_end_(std::move(on_end)) {
  const std::string_view theirs = request.header("x-request-id");
  report_.id = is_id(theirs) ? std::string(theirs) : random_id("req-");
  report_.method = request.method;
  report_.path = request.path.substr(0, kMaxPath);
  report_.peer = request.peer;
}

Exchange::~Exchange() {
  *gone_ = *gone_ || !ended_;
  finish();
}

void Exchange::set_caller(Caller caller, Headers headers) {
  caller_ = std::move(caller);
  headers_ = std::move(headers);
  report_.tenant = caller_.name;
}

void Exchange::count_tokens(int64_t n_prompt, int64_t n_cached, int64_t n_generated) {
  report_.generates = true;
  report_.n_prompt += n_prompt;
  report_.n_cached += n_cached;
  report_.n_generated += n_generated;
}

void Exchange::note_bug(const Error& error) {
  if (error.code() == ErrorCode::kBug) report_.bug = error.what();
}

void Exchange::add_headers(HttpResponse& response) {
  report_.status = response.status;
  response.headers.emplace_back("x-request-id", report_.id);
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
}

void Exchange::send(HttpResponse response) {
  if (response.status >= 400) report_.error = error_message(response.body);
  add_headers(response);
  reply_->send(std::move(response));
  finish();
}

void Exchange::begin(HttpResponse head, std::string heartbeat) {
  add_headers(head);
  begun_ = true;
  reply_->begin(std::move(head), std::move(heartbeat));
}

void Exchange::end() {
  reply_->end();
  finish();
}

void Exchange::on_gone(std::function<void()> callback) {
  reply_->on_gone([gone = gone_, callback = std::move(callback)] {
    *gone = true;
    callback();
  });
}

void Exchange::finish() {
  if (ended_.exchange(true)) return;
  report_.ms = ms_since(begin_);
  report_.gone = *gone_;
  if (report_.gone && !begun_) report_.status = 499;
  if (on_end_) on_end_(report_);
}

}  // namespace vlcache
