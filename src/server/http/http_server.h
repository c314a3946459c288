// HTTP/1.1 by Boost.Beast: a connection that waits costs a few kilobytes and no thread. Knows nothing of models.
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

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;              // 0: any that is free
  std::string tls_cert, tls_key;  // PEM files of HTTPS; empty: HTTP
  int n_workers = 2;              // threads that requests are handled by; another one reads and writes
  size_t max_header_bytes = 32 << 10;
  uint64_t max_body_bytes = uint64_t{64} << 20;
  size_t max_connections = 16384;  // more are told so and closed
  // Of a connection that waits for a request, of a request that has begun to come, and of a client that does not read.
  std::chrono::milliseconds idle_timeout{75'000}, request_timeout{60'000}, write_timeout{30'000};
  size_t max_unread_bytes = 1 << 20;  // of a reply in pieces that its client does not read: the client counts as gone
  std::chrono::milliseconds heartbeat{10'000};  // a reply in pieces is never silent for longer
};

struct HttpRequest {
  std::string method, path, query;                           // path: as it was sent, "/v1/models"
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string peer;  // address of the client

  // "" where it is not there; the first of several.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // others
  std::string body;
};

// What a client gets for a request. Any thread may call any of it; what comes behind the end, or to a client that has
// gone, does nothing. One that is dropped before its end ends the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // All at once.
  virtual void send(HttpResponse response) = 0;
  // In pieces: status and headers, then write()s, then end(). `heartbeat` is sent when nothing else is for a while.
  virtual void begin(HttpResponse head, std::string heartbeat) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // To be called once, by any thread, if the client goes before the reply's end; now, if it has gone.
  virtual void on_gone(std::function<void()> callback) = 0;
};

using HttpReplyPtr = std::shared_ptr<HttpReply>;

class HttpServer {
 public:
  // Called by a worker, which may take its time. May not throw.
  using Handler = std::function<void(HttpRequest request, HttpReplyPtr reply)>;

  // Listens. Throws Error(kIo) where it cannot.
  HttpServer(const HttpOptions& options, Handler handler);
  // Without waiting: connections end where they are. No reply may outlive it.
  ~HttpServer();

  uint16_t port() const;
  // Takes no more connections and requests; returns when all replies have ended, or at the deadline. False: some had
  // not.
  bool drain(std::chrono::steady_clock::time_point deadline);
  size_t n_connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlcache
