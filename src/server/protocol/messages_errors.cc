#include "server/protocol/messages_errors.h"

#include <utility>

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

class Reshaped final : public HttpReply {
 public:
  explicit Reshaped(HttpReplyPtr reply) : reply_(std::move(reply)) {}

  void send(HttpResponse response) override {
    if (response.status >= 400) {
      const OrderedJson body = OrderedJson::parse(response.body, nullptr, /*allow_exceptions=*/false);
      if (body.is_object() && body.contains("error") && body["error"].contains("message")) {
        response.body = messages_error_json(response.status, body["error"]["message"].get<std::string>()).dump();
      }
    }
    reply_->send(std::move(response));
  }
  void begin(HttpResponse head, std::string heartbeat) override {
    reply_->begin(std::move(head), std::move(heartbeat));
  }
  void write(std::string piece) override { reply_->write(std::move(piece)); }
  void end() override { reply_->end(); }
  void on_gone(std::function<void()> callback) override { reply_->on_gone(std::move(callback)); }

 private:
  HttpReplyPtr reply_;
};

}  // namespace

OrderedJson messages_error_json(int status, const std::string& message) {
  return {{"type", "error"}, {"error", {{"type", type_of(status)}, {"message", message}}}};
}

HttpReplyPtr with_messages_errors(HttpReplyPtr reply) { return std::make_shared<Reshaped>(std::move(reply)); }

}  // namespace vlcache
