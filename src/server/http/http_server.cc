#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "base/error.h"
#include "server/http/http_session.h"

namespace vlcache {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

std::string_view HttpRequest::header(std::string_view name) const {
  const auto at = std::ranges::find(headers, name, &std::pair<std::string, std::string>::first);
  return at == headers.end() ? std::string_view() : std::string_view(at->second);
}

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, Handler handler)
      : shared_(options, std::move(handler)), acceptor_(io_), pause_(io_) {
    listen();
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Impl() {
    for (auto* pool : {&shared_.workers, &shared_.urgent}) (*pool)->stop();
    for (auto* pool : {&shared_.workers, &shared_.urgent}) (*pool)->join();
    io_.stop();
    thread_.join();  // nothing posts to the pools any more
    for (auto* pool : {&shared_.workers, &shared_.urgent}) pool->reset();
  }

  uint16_t port() const { return port_; }
  size_t n_connections() const { return shared_.sessions.size(); }

  bool drain(std::chrono::steady_clock::time_point deadline) {
    shared_.draining = true;
    asio::post(io_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
    shared_.sessions.drain_all();
    return shared_.sessions.wait_until_empty(deadline);
  }

 private:
  void listen() {
    const HttpOptions& o = shared_.options;
    const std::string where = o.host + ":" + std::to_string(o.port);
    try {
      tcp::resolver resolver(io_);
      const tcp::endpoint endpoint =
          *resolver.resolve(o.host, std::to_string(o.port), tcp::resolver::passive | tcp::resolver::numeric_service)
               .begin();
      acceptor_.open(endpoint.protocol());
      acceptor_.set_option(asio::socket_base::reuse_address(true));
      acceptor_.bind(endpoint);
      acceptor_.listen(asio::socket_base::max_listen_connections);
      port_ = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& e) {
      throw Error(ErrorCode::kIo, "cannot listen on " + where + ": " + e.code().message() +
                                      (e.code() == asio::error::address_in_use ? " (choose another --port)" : ""));
    }
  }

  void accept() {
    acceptor_.async_accept(io_, [this](error_code e, tcp::socket socket) {
      if (e == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (e) {  // usually out of file descriptors: some will be closed
        pause_.expires_after(std::chrono::milliseconds(100));
        pause_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      const bool room = shared_.sessions.size() < shared_.options.max_connections;
      begin_session(std::move(socket), shared_, room);
      accept();
    });
  }

  HttpShared shared_;  // outlives the sessions, which the context holds
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> busy_ =
      asio::make_work_guard(io_);  // until the destructor: replies post to it
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::thread thread_;
};

HttpServer::HttpServer(const HttpOptions& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port(); }
size_t HttpServer::n_connections() const { return impl_->n_connections(); }
bool HttpServer::drain(std::chrono::steady_clock::time_point deadline) { return impl_->drain(deadline); }

}  // namespace vlcache
