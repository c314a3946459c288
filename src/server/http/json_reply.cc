#include "server/http/json_reply.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/coded_error.h"
#include "base/exact_json.h"

namespace vlcache {

using OrderedJson = nlohmann::ordered_json;

int http_status(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInput:
    case ErrorCode::kUnsupported:
    case ErrorCode::kShape:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kMemory:
    case ErrorCode::kOutOfPages:
      return 413;
    case ErrorCode::kCancelled:  // it timed out
      return 504;
    case ErrorCode::kIo:
    case ErrorCode::kBug:
      break;
  }
  return 500;
}

OrderedJson error_json(const Error& error) {
  const std::string message = error.what();
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.[]0123456789");
  const auto* coded = dynamic_cast<const CodedError*>(&error);
  if (coded != nullptr) {
    return {{"error",
             {{"message", message},
              {"type", "invalid_request_error"},
              {"param", coded->param().empty() ? OrderedJson() : OrderedJson(coded->param())},
              {"code", coded->name()}}}};
  }
  const bool names_field = end != std::string::npos && end > 0 && message[end] == ':';
  const bool asked_wrong = http_status(error) < 500;
  return {{"error",
           {{"message", message},
            {"type", asked_wrong ? "invalid_request_error" : "server_error"},
            {"param", names_field ? OrderedJson(message.substr(0, end)) : OrderedJson()},
            {"code", nullptr}}}};
}

std::string utc_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

HttpResponse json_response(const OrderedJson& json, int status) {
  return {.status = status, .content_type = "application/json", .headers = {}, .body = dump_exact_json(json)};
}

HttpResponse error_response(const Error& error) { return json_response(error_json(error), http_status(error)); }

HttpResponse refusal(int status, const std::string& message, const std::string& type, const std::string& code) {
  return json_response({{"error",
                         {{"message", message},
                          {"type", type},
                          {"param", nullptr},
                          {"code", code.empty() ? OrderedJson() : OrderedJson(code)}}}},
                       status);
}

}  // namespace vlcache
