// HttpSession serves a connection of an HttpServer: one request after another, each with its reply.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "server/http/http_server.h"

namespace vlcache {

class HttpSession;

// The sessions in existence, so that they can be drained.
class HttpSessions {
 public:
  void add(HttpSession* session);
  void remove(HttpSession* session);
  size_t size() const;
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline);
  void drain_all();

 private:
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::set<HttpSession*> sessions_;
};

// State that all sessions of a server share.
struct HttpShared {
  // Throws as server_tls does.
  HttpShared(const HttpOptions& options, HttpServer::Handler handler);

  HttpOptions options;
  HttpServer::Handler handler;
  std::unique_ptr<boost::asio::ssl::context> tls;  // null: plain HTTP
  std::atomic<bool> draining{false};
  HttpSessions sessions;
  // Handlers. What is queued in them holds replies, which post to the sockets' context when they are destroyed: they
  // are destroyed before it.
  std::optional<boost::asio::thread_pool> workers, urgent;  // the latter, of one thread, for HttpOptions::is_urgent
};

// Reads and writes in the thread of the socket's context. Without room, replies 503 and closes.
void begin_session(boost::asio::ip::tcp::socket socket, HttpShared& shared, bool has_room);

}  // namespace vlcache
