// HttpServer: HTTP/1.1 on Boost.Beast. An idle connection costs a few kilobytes and no thread. It knows nothing of
// models.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlcache {

// ASCII letters in lower case: names of headers and hosts are compared so.
std::string lower_case(std::string_view text);

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;              // 0: any free port
  std::string tls_cert, tls_key;  // PEM files of HTTPS; empty: HTTP
  int n_workers = 2;              // threads that handle requests; another one reads and writes
  // Whether a request of this method and path is handled by a thread of its own, which no other request can occupy. Its
  // body is not unpacked. Empty: none is.
  std::function<bool(std::string_view method, std::string_view path)> is_urgent = nullptr;
  size_t max_header_bytes = 32 << 10;
  uint64_t max_body_bytes = uint64_t{64} << 20;
  size_t max_connections = 16384;  // further ones get a 503 and are closed
  // For the headers of the next request; for a TLS handshake, and for silence within a body; for a client that does not
  // read.
  std::chrono::milliseconds idle_timeout{75'000}, request_timeout{60'000}, write_timeout{30'000};
  // The slowest client that a body is accepted from, on average after request_timeout, and that a reply is written to.
  uint64_t min_bytes_per_s = 1 << 10;
  // A whole body has body_timeout and as long as max_body_bytes need at this speed: at 64 MiB nine minutes, in which
  // 1 Mbit/s is enough for all of them.
  std::chrono::milliseconds body_timeout{300'000};
  uint64_t full_bytes_per_s = 256 << 10;
  size_t max_unread_bytes = 1 << 20;            // of a streamed reply; with more, the client counts as gone
  std::chrono::milliseconds heartbeat{10'000};  // longest silence in a streamed reply
};

struct HttpRequest {
  std::string method, path, query;                           // path: as sent, "/v1/models"
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string peer;  // address of the client

  // The first of several; "" without one.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // further headers
  std::string body;
};

// The reply to a request. Any thread may call any member; calls after the end, or after the client has gone, do
// nothing. A reply that is destroyed before its end closes the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // The whole reply.
  virtual void send(HttpResponse response) = 0;
  // In pieces: status and headers, then write()s, then end(). `heartbeat` is sent after HttpOptions::heartbeat of
  // silence. Headers that keep proxies from holding pieces back are added.
  virtual void begin(HttpResponse head, std::string heartbeat) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // `callback` is called once, by any thread, if the client leaves before the reply's end; at once if it has left. With
  // a callback, a client that has closed only its sending side counts as one that has left.
  virtual void on_gone(std::function<void()> callback) = 0;
};

using HttpReplyPtr = std::shared_ptr<HttpReply>;

class HttpServer {
 public:
  // Called by a worker; may block. Must not throw.
  using Handler = std::function<void(HttpRequest request, HttpReplyPtr reply)>;

  // Throws Error(kIo) if it cannot listen.
  HttpServer(const HttpOptions& options, Handler handler);
  // Does not wait: closes all connections. No reply may outlive the server.
  ~HttpServer();

  uint16_t port() const;
  // Accepts no more connections and requests. Returns true when all replies have ended, false at the deadline.
  bool drain(std::chrono::steady_clock::time_point deadline);
  size_t n_connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlcache
