// Sessions: one request after another of a connection, each with its reply.
#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "server/socket_stream.h"
#include "server/tls.h"

namespace vlcache {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

std::string chunk(std::string_view piece) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
  return size + std::string(piece) + "\r\n";
}

std::string problem(std::string_view what) {
  return R"({"error":{"message":")" + std::string(what) +
         R"(","type":"invalid_request_error","param":null,"code":null}})";
}

class Session;

// Sessions that live, so that they can be told to end.
class Sessions {
 public:
  void add(Session* session) {
    const std::lock_guard lock(mutex_);
    sessions_.insert(session);
  }
  void remove(Session* session) {
    const std::lock_guard lock(mutex_);
    sessions_.erase(session);
    if (sessions_.empty()) empty_.notify_all();
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return sessions_.size();
  }
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return empty_.wait_until(lock, deadline, [&] { return sessions_.empty(); });
  }
  void close_all();

 private:
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::set<Session*> sessions_;
};

// What all sessions of a server have in common.
struct Shared {
  Shared(const HttpOptions& o, HttpServer::Handler h)
      : options(o), handler(std::move(h)), workers(static_cast<size_t>(std::max(1, o.n_workers))) {
    if (!o.tls_cert.empty()) tls = server_tls(o.tls_cert, o.tls_key);
  }

  HttpOptions options;
  HttpServer::Handler handler;
  std::unique_ptr<asio::ssl::context> tls;  // null: in the clear
  std::atomic<bool> draining{false};
  Sessions sessions;
  asio::thread_pool workers;
};

// Runs in the thread that reads and writes.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared)
      : stream_(std::move(socket), shared.tls.get()),
        timer_(stream_.get_executor()),
        deadline_(stream_.get_executor()),
        shared_(shared) {
    shared_.sessions.add(this);
  }
  ~Session() { shared_.sessions.remove(this); }

  void start() {
    post([self = shared_from_this()] { self->stream_.has_tls() ? self->shake_hands() : self->read(); });
  }
  void refuse() {
    post([self = shared_from_this()] {
      if (self->stream_.has_tls()) return self->close();  // shaking hands is what there is no room for
      self->fail(503, "too many connections; try again later");
    });
  }
  // Ends it between two requests.
  void drain() {
    if (auto self = weak_from_this().lock()) {
      post([self] {
        if (!self->replying_ && self->queue_.empty()) self->close();  // else behind the reply
      });
    }
  }
  template <typename F>
  void post(F f) {
    asio::post(stream_.get_executor(), std::move(f));
  }

  // ---- a reply's side ---------------------------------------------------------------------------------------------
  void send(uint64_t number, const HttpResponse& response) {
    if (number != number_ || !replying_ || begun_) return;
    // 304 speaks of a body that is not sent: it has no length of its own.
    const std::string length =
        response.status == 304 ? "" : "content-length: " + std::to_string(response.body.size()) + "\r\n";
    write(head(response) + length + "\r\n" + (parser_->get().method() == http::verb::head ? "" : response.body));
    finish();
  }
  void begin(uint64_t number, const HttpResponse& response, std::string heartbeat) {
    if (number != number_ || !replying_ || begun_) return;
    begun_ = true;
    heartbeat_ = std::move(heartbeat);
    in_chunks_ = parser_->get().version() >= 11;
    if (!in_chunks_) keep_alive_ = false;  // its end is the connection's
    write(head(response) + (in_chunks_ ? "transfer-encoding: chunked\r\n\r\n" : "\r\n"));
    beat();
  }
  void write_piece(uint64_t number, std::string_view piece) {
    if (number != number_ || !replying_ || !begun_ || piece.empty()) return;
    write(in_chunks_ ? chunk(piece) : std::string(piece));
  }
  void end(uint64_t number) {
    if (number != number_ || !replying_ || !begun_) return;
    if (in_chunks_) write("0\r\n\r\n");
    finish();
  }
  void on_gone(uint64_t number, std::function<void()> callback) {
    if (number == number_ && replying_) {
      gone_ = std::move(callback);
    } else if (number == number_ && closed_ && !finished_) {
      callback();
    }
  }
  // Nobody will write to it any more.
  void dropped(uint64_t number) {
    if (number == number_ && replying_) close();
  }

 private:
  std::string head(const HttpResponse& response) const {
    std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " +
                       std::string(http::obsolete_reason(static_cast<http::status>(response.status))) + "\r\n";
    text += "content-type: " + response.content_type + "\r\n";
    for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
    text += keep_alive_ ? "connection: keep-alive\r\n" : "connection: close\r\n";
    return text;
  }

  // The connection ends at that time, unless another deadline, or none, is set before.
  void end_in(std::chrono::milliseconds time) {
    deadline_.expires_after(time);
    deadline_.async_wait([weak = weak_from_this()](error_code e) {
      const auto self = weak.lock();
      if (self && !e && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->close();
    });
  }
  void end_never() { deadline_.expires_at(std::chrono::steady_clock::time_point::max()); }

  void shake_hands() {
    end_in(shared_.options.request_timeout);
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [self = shared_from_this()](error_code e) { e ? self->close() : self->read(); });
  }

  void read() {
    if (shared_.draining) return close();
    end_in(shared_.options.idle_timeout);
    wants_to_read_ = reading_ahead_;
    if (wants_to_read_) return;  // once what is being read is there
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
    parser_->body_limit(shared_.options.max_body_bytes);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code e, size_t) { self->on_header(e); });
  }

  void on_header(error_code e) {
    if (e) return on_bad_request(e);
    end_in(shared_.options.request_timeout);
    if (lower(parser_->get()[http::field::expect]) == "100-continue") {
      stream_.write_now("HTTP/1.1 100 Continue\r\n\r\n");
    }
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code body_error, size_t) {
      if (body_error) return self->on_bad_request(body_error);
      self->on_request();
    });
  }

  void on_bad_request(error_code e) {
    if (e == http::error::body_limit) {
      return fail(413,
                  "the request's body is larger than " + std::to_string(shared_.options.max_body_bytes) + " bytes");
    }
    if (e == http::error::header_limit) return fail(431, "the request's headers are too large");
    const bool no_http = e.category() == make_error_code(http::error::bad_method).category();
    if (no_http && e != http::error::end_of_stream && e != http::error::partial_message) {
      return fail(400, "not an HTTP request: " + e.message());
    }
    close();
  }

  // A reply without a request that could be read; the connection ends behind it.
  void fail(int status, const std::string& what) {
    keep_alive_ = false;
    replying_ = true;
    finished_ = false;
    const HttpResponse response{
        .status = status, .content_type = "application/json", .headers = {}, .body = problem(what)};
    write(head(response) + "content-length: " + std::to_string(response.body.size()) + "\r\n\r\n" + response.body);
    finish();
  }

  void on_request();
  void watch_client();
  void read_ahead();

  void write(std::string bytes) {
    unread_ += bytes.size();
    queue_.push_back(std::move(bytes));
    if (begun_ && unread_ > shared_.options.max_unread_bytes) return close();
    if (queue_.size() == 1) write_next();
  }

  void write_next() {
    if (queue_.empty() || closed_) return;
    end_in(shared_.options.write_timeout);
    asio::async_write(stream_, asio::buffer(queue_.front()), [self = shared_from_this()](error_code e, size_t) {
      if (e) return self->close();
      if (self->closed_) return;
      self->unread_ -= self->queue_.front().size();
      self->queue_.pop_front();
      if (!self->queue_.empty()) return self->write_next();
      self->end_never();
      self->on_written();
    });
  }

  void on_written() {
    if (!replying_) {
      if (finished_) next();
      return;
    }
    if (begun_) beat();
  }

  // The reply is complete; what of it is still to be written is.
  void finish() {
    replying_ = begun_ = false;
    finished_ = true;
    gone_ = nullptr;
    timer_.cancel();
  }

  void next() {
    finished_ = false;
    ++number_;
    if (keep_alive_) return read();
    end_in(std::chrono::seconds(1));
    if (!stream_.has_tls()) return hang_up();
    stream_.async_shutdown([self = shared_from_this()](error_code) { self->hang_up(); });
  }

  void hang_up() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    linger();
  }

  // Reads what still comes, so that the client sees the reply and no reset.
  void linger() {
    stream_.socket().async_read_some(asio::buffer(waste_), [self = shared_from_this()](error_code e, size_t) {
      if (e) return self->close();
      self->linger();
    });
  }

  void beat() {
    if (heartbeat_.empty()) return;
    timer_.expires_after(shared_.options.heartbeat);
    timer_.async_wait([self = shared_from_this(), number = number_](error_code e) {
      if (!e) self->write_piece(number, self->heartbeat_);
    });
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    timer_.cancel();
    deadline_.cancel();
    stream_.close();
    replying_ = false;
    if (std::function<void()> gone = std::exchange(gone_, nullptr)) gone();
  }

  SocketStream stream_;
  asio::steady_timer timer_, deadline_;
  Shared& shared_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::deque<std::string> queue_;  // to be written, the first of them on its way
  size_t unread_ = 0;              // bytes of it
  uint64_t number_ = 0;            // of the request
  bool keep_alive_ = false, replying_ = false, begun_ = false, in_chunks_ = false, finished_ = false, closed_ = false;
  bool reading_ahead_ = false, wants_to_read_ = false;
  std::string heartbeat_;
  std::function<void()> gone_;
  std::array<char, 1024> waste_;
};

void Sessions::close_all() {
  std::vector<std::shared_ptr<Session>> alive;  // let go without the lock: the last holder's remove() takes it
  {
    const std::lock_guard lock(mutex_);
    for (Session* session : sessions_) {
      if (auto held = session->weak_from_this().lock()) alive.push_back(std::move(held));  // else it is about to go
    }
  }
  for (const auto& session : alive) session->drain();
}

class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<Session> session, uint64_t number) : session_(std::move(session)), number_(number) {}
  ~Reply() override {
    session_->post([s = session_, n = number_] { s->dropped(n); });
  }
  void send(HttpResponse response) override {
    session_->post([s = session_, n = number_, r = std::move(response)] { s->send(n, r); });
  }
  void begin(HttpResponse head, std::string heartbeat) override {
    session_->post([s = session_, n = number_, r = std::move(head), h = std::move(heartbeat)] { s->begin(n, r, h); });
  }
  void write(std::string piece) override {
    session_->post([s = session_, n = number_, p = std::move(piece)] { s->write_piece(n, p); });
  }
  void end() override {
    session_->post([s = session_, n = number_] { s->end(n); });
  }
  void on_gone(std::function<void()> callback) override {
    session_->post([s = session_, n = number_, c = std::move(callback)] { s->on_gone(n, c); });
  }

 private:
  std::shared_ptr<Session> session_;
  uint64_t number_;
};

void Session::on_request() {
  http::request<http::string_body>& message = parser_->get();
  keep_alive_ = message.keep_alive() && !shared_.draining;
  replying_ = true;
  finished_ = false;
  HttpRequest request;
  request.method = message.method_string();
  const std::string_view target(message.target().data(), message.target().size());
  request.path = target.substr(0, target.find('?'));
  if (const size_t mark = target.find('?'); mark != std::string_view::npos) request.query = target.substr(mark + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value().data(), field.value().size()));
  }
  request.body = std::move(message.body());
  error_code gone;
  const tcp::endpoint peer = stream_.socket().remote_endpoint(gone);
  if (!gone) request.peer = peer.address().to_string();
  end_never();
  watch_client();
  asio::post(shared_.workers,
             [this, r = std::move(request), reply = std::make_shared<Reply>(shared_from_this(), number_)]() mutable {
               shared_.handler(std::move(r), std::move(reply));
             });
}

// While a reply is made nothing is read: whether the client is there shows in what the socket has to say.
void Session::watch_client() {
  if (stream_.has_tls()) return read_ahead();
  stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this(), number = number_](error_code e) {
    if (e || self->closed_ || number != self->number_ || !self->replying_) return;
    char byte = 0;
    error_code state;
    const size_t n = self->stream_.socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, state);
    if (state == asio::error::would_block || state == asio::error::try_again) return self->watch_client();
    if (state || n == 0) self->close();  // else its next request, which waits
  });
}

// Records of TLS do not show from outside what they are: what comes while a reply is made is read, and waits for its
// turn. Who has sent the next request already is there.
void Session::read_ahead() {
  if (reading_ahead_ || buffer_.size() > 0) return;
  reading_ahead_ = true;
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code e, size_t n) {
    self->reading_ahead_ = false;
    if (e) return self->close();
    self->buffer_.commit(n);
    if (std::exchange(self->wants_to_read_, false)) self->read();
  });
}

}  // namespace

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
    shared_.workers.stop();
    shared_.workers.join();
    io_.stop();
    thread_.join();
  }

  uint16_t port() const { return port_; }
  size_t n_connections() const { return shared_.sessions.size(); }

  bool drain(std::chrono::steady_clock::time_point deadline) {
    shared_.draining = true;
    asio::post(io_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
    shared_.sessions.close_all();
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
      if (e) {  // out of file descriptors, as a rule: some will be closed
        pause_.expires_after(std::chrono::milliseconds(100));
        pause_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      const bool room = shared_.sessions.size() < shared_.options.max_connections;
      auto session = std::make_shared<Session>(std::move(socket), shared_);
      room ? session->start() : session->refuse();
      accept();
    });
  }

  Shared shared_;  // outlives the sessions, which the context holds
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> busy_ =
      asio::make_work_guard(io_);  // until the end: replies post to it
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
