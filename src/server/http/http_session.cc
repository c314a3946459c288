// The socket's thread reads requests and hands them to workers; replies come from other threads.
#include "server/http/http_session.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <ctime>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "server/http/body_pace.h"
#include "server/http/content_coding.h"
#include "server/http/socket_stream.h"
#include "server/http/tls.h"

namespace vlcache {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// A connection that is to be closed is read until the client has been silent for kLinger, for kLongestLinger at most.
constexpr std::chrono::milliseconds kLinger{1000}, kLongestLinger{30'000};
constexpr size_t kWaste = 16 << 10;
constexpr size_t kReadSize = 64 << 10;  // Beast reads a body in pieces of this size
constexpr int kMaxEmptyLines = 16;      // before a request

std::string chunk(std::string_view piece) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
  return size + std::string(piece) + "\r\n";
}

// "Sun, 06 Nov 1994 08:49:37 GMT", whatever the locale.
std::string http_date(std::time_t time) {
  constexpr const char *kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"},
                       *kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%s, %02d %s %d %02d:%02d:%02d GMT", kDays[parts.tm_wday], parts.tm_mday,
                kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return text;
}

// A reply in pieces is of use only if each passes at once: nginx holds back 4 KiB unless it is told otherwise.
std::string stream_headers(const HttpResponse& response) {
  std::string text = "x-accel-buffering: no\r\n";
  if (!std::ranges::any_of(response.headers, [](const auto& h) { return lower_case(h.first) == "cache-control"; })) {
    text += "cache-control: no-cache\r\n";
  }
  return text;
}

// Whether bytes after a request are empty lines: some clients send one after a body.
bool are_empty_lines(std::string_view bytes) { return bytes.find_first_not_of("\r\n") == bytes.npos; }

std::string problem(std::string_view what) {
  return R"({"error":{"message":")" + std::string(what) +
         R"(","type":"invalid_request_error","param":null,"code":null}})";
}

}  // namespace

// Runs in the socket's thread.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(tcp::socket socket, HttpShared& shared)
      : stream_(std::move(socket), shared.tls.get()),
        timer_(stream_.get_executor()),
        deadline_(stream_.get_executor()),
        write_deadline_(stream_.get_executor()),
        shared_(shared),
        buffer_(shared.options.max_header_bytes + kReadSize) {
    shared_.sessions.add(this);
  }
  ~HttpSession() { shared_.sessions.remove(this); }

  void start() {
    post([self = shared_from_this()] { self->stream_.has_tls() ? self->shake_hands() : self->read(); });
  }
  void refuse() {
    post([self = shared_from_this()] {
      if (self->stream_.has_tls()) return self->close();  // there is no room for a TLS handshake
      self->fail(503, "too many connections; try again later");
    });
  }
  // Closes the connection between two requests.
  void drain() {
    if (auto self = weak_from_this().lock()) {
      post([self] {
        if (!self->replying_ && self->queue_.empty()) self->close();  // else after the reply
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
    // 304 speaks of a body that is not sent, and 204 has none: they have no length of their own.
    const bool has_length = response.status != 304 && response.status != 204;
    const std::string length = has_length ? "content-length: " + std::to_string(response.body.size()) + "\r\n" : "";
    write(head(response) + length + "\r\n" + (to_head() ? "" : response.body));
    finish();
  }
  void begin(uint64_t number, const HttpResponse& response, std::string heartbeat) {
    if (number != number_ || !replying_ || begun_) return;
    begun_ = true;
    heartbeat_ = std::move(heartbeat);
    in_chunks_ = parser_->get().version() >= 11;
    if (!in_chunks_) keep_alive_ = false;  // the end of the connection marks its end
    write(head(response) + stream_headers(response) + (in_chunks_ ? "transfer-encoding: chunked\r\n\r\n" : "\r\n"));
    beat();
  }
  void write_piece(uint64_t number, std::string_view piece) {
    if (number != number_ || !replying_ || !begun_ || piece.empty() || to_head()) return;
    write(in_chunks_ ? chunk(piece) : std::string(piece));
  }
  void end(uint64_t number) {
    if (number != number_ || !replying_ || !begun_) return;
    if (in_chunks_ && !to_head()) write("0\r\n\r\n");
    finish();
  }
  void on_gone(uint64_t number, std::function<void()> callback) {
    if (number == number_ && replying_) {
      gone_ = std::move(callback);
      if (half_closed_) close();
    } else if (number == number_ && closed_ && !finished_) {
      callback();
    }
  }
  // The reply was destroyed: no more writes follow.
  void dropped(uint64_t number) {
    if (number == number_ && replying_) close();
  }

 private:
  std::string head(const HttpResponse& response) const {
    std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " +
                       std::string(http::obsolete_reason(static_cast<http::status>(response.status))) + "\r\n";
    text += "date: " + http_date(std::time(nullptr)) + "\r\n";
    text += "content-type: " + response.content_type + "\r\n";
    for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
    text += keep_alive_ ? "connection: keep-alive\r\n" : "connection: close\r\n";
    return text;
  }

  // The reply to HEAD is its head alone.
  bool to_head() const { return parser_->get().method() == http::verb::head; }

  // At the deadline the connection is closed, after a reply of 408 if a request has begun to arrive.
  enum class Waiting { kForAnything, kForHeaders, kForBody };

  // Sets the deadline; another one, or none, may be set before it.
  void end_at(Clock::time_point time, Waiting waiting) {
    waiting_ = waiting;
    deadline_.expires_at(time);
    deadline_.async_wait([weak = weak_from_this()](error_code e) {
      const auto self = weak.lock();
      if (self && !e && self->deadline_.expiry() <= Clock::now()) self->on_late();
    });
  }
  void end_in(std::chrono::milliseconds time) { end_at(Clock::now() + time, Waiting::kForAnything); }
  void end_never() { deadline_.expires_at(Clock::time_point::max()); }
  void on_late() {
    if (waiting_ == Waiting::kForAnything) return close();
    late_ = true;
    error_code ignored;
    stream_.socket().cancel(ignored);  // the read that is waiting ends with an error
  }

  void shake_hands() {
    end_in(shared_.options.request_timeout);
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [self = shared_from_this()](error_code e) { e ? self->close() : self->read(); });
  }

  void read() {
    if (shared_.draining) return close();
    end_in(shared_.options.idle_timeout);
    wants_to_read_ = reading_ahead_;
    if (wants_to_read_) return;  // once the pending read is complete
    n_empty_lines_ = 0;
    skip_empty_lines();
  }

  // RFC 9112 2.2: empty lines before a request are ignored. The deadline stays.
  void skip_empty_lines() {
    const auto begins_with = [&](std::string_view text) {
      const std::string_view seen(static_cast<const char*>(buffer_.data().data()), buffer_.size());
      return seen.starts_with(text);
    };
    for (; n_empty_lines_ < kMaxEmptyLines && (begins_with("\r\n") || begins_with("\n")); ++n_empty_lines_) {
      buffer_.consume(begins_with("\n") ? 1 : 2);
    }
    if (buffer_.size() > 1 || (buffer_.size() == 1 && !begins_with("\r"))) return read_header();
    stream_.async_read_some(buffer_.prepare(beast::read_size(buffer_, 4096)),
                            [self = shared_from_this()](error_code e, size_t n) {
                              if (e) return self->on_bad_request(e);
                              self->buffer_.commit(n);
                              self->skip_empty_lines();
                            });
  }

  void read_header() {
    waiting_ = Waiting::kForHeaders;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
    parser_->body_limit(shared_.options.max_body_bytes);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code e, size_t) { self->on_header(e); });
  }

  void on_header(error_code e) {
    if (e || late_) return on_bad_request(e);
    // RFC 9110 10.1.1: not to HTTP/1.0, and not where no body follows.
    if (lower_case(parser_->get()[http::field::expect]) == "100-continue" && parser_->get().version() >= 11 &&
        !parser_->is_done()) {
      write("HTTP/1.1 100 Continue\r\n\r\n");
    }
    pace_.emplace(shared_.options, Clock::now());
    read_body();
  }

  // Piece by piece: a deadline follows each.
  void read_body() {
    if (parser_->is_done()) return on_request();
    end_at(pace_->deadline(Clock::now(), parser_->get().body().size()), Waiting::kForBody);
    http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](error_code e, size_t) {
      if (e || self->late_) return self->on_bad_request(e);
      self->read_body();
    });
  }

  void on_bad_request(error_code e) {
    if (closed_) return;
    if (std::exchange(late_, false)) {
      return fail(408,
                  waiting_ == Waiting::kForBody ? pace_->reason() : "the request's headers did not arrive in time");
    }
    if (e == http::error::body_limit) {
      return fail(413,
                  "the request's body is larger than " + std::to_string(shared_.options.max_body_bytes) + " bytes");
    }
    if (e == http::error::header_limit) return fail(431, "the request's headers are too large");
    if (e == http::error::buffer_overflow) return fail(400, "a chunk's extensions, or the trailers, are too large");
    const bool no_http = e.category() == make_error_code(http::error::bad_method).category();
    if (no_http && e != http::error::end_of_stream && e != http::error::partial_message) {
      return fail(400, "not an HTTP request: " + e.message());
    }
    close();
  }

  // Replies to a request that could not be read, then closes the connection.
  void fail(int status, const std::string& what) {
    end_never();
    keep_alive_ = false;
    replying_ = true;
    finished_ = false;
    const HttpResponse response{
        .status = status, .content_type = "application/json", .headers = {}, .body = problem(what)};
    write(head(response) + "content-length: " + std::to_string(response.body.size()) + "\r\n\r\n" + response.body);
    finish();
  }

  bool refuse_headers();
  void on_request();
  void watch_client();
  void read_ahead();
  void on_client_end();

  void write(std::string bytes) {
    unread_ += bytes.size();
    queue_.push_back(std::move(bytes));
    if (begun_ && unread_ > shared_.options.max_unread_bytes) return close();
    if (queue_.size() == 1) write_next();
  }

  void write_next() {
    if (queue_.empty() || closed_) return;
    const HttpOptions& o = shared_.options;
    const std::chrono::seconds at_least(queue_.front().size() / std::max<uint64_t>(o.min_bytes_per_s, 1));
    write_deadline_.expires_after(o.write_timeout + at_least);
    write_deadline_.async_wait([weak = weak_from_this()](error_code e) {
      const auto self = weak.lock();
      if (self && !e && self->write_deadline_.expiry() <= Clock::now()) self->close();
    });
    asio::async_write(stream_, asio::buffer(queue_.front()), [self = shared_from_this()](error_code e, size_t) {
      if (e) return self->close();
      if (self->closed_) return;
      self->unread_ -= self->queue_.front().size();
      self->queue_.pop_front();
      if (!self->queue_.empty()) return self->write_next();
      self->write_deadline_.expires_at(Clock::time_point::max());
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

  // The reply is complete. on_written() continues after the last queued piece; where that has been written already, no
  // write follows.
  void finish() {
    replying_ = begun_ = false;
    finished_ = true;
    gone_ = nullptr;
    timer_.cancel();
    if (queue_.empty() && !closed_) next();
  }

  void next() {
    finished_ = false;
    ++number_;
    if (keep_alive_) return read();
    linger_until_ = Clock::now() + (shared_.draining ? kLinger : kLongestLinger);
    end_in(kLinger);
    if (!stream_.has_tls()) return hang_up();
    stream_.async_shutdown([self = shared_from_this()](error_code) { self->hang_up(); });
  }

  void hang_up() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    linger();
  }

  // Reads and discards input, so that a client that still sends its request receives the reply and no reset.
  void linger() {
    waste_.resize(kWaste);
    stream_.socket().async_read_some(asio::buffer(waste_), [self = shared_from_this()](error_code e, size_t) {
      if (e) return self->close();
      self->end_in(std::min(kLinger, std::chrono::ceil<std::chrono::milliseconds>(self->linger_until_ - Clock::now())));
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
    write_deadline_.cancel();
    stream_.close();
    replying_ = false;
    if (std::function<void()> gone = std::exchange(gone_, nullptr)) gone();
  }

  SocketStream stream_;
  asio::steady_timer timer_, deadline_, write_deadline_;
  HttpShared& shared_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::deque<std::string> queue_;  // to be written; the first is being written
  size_t unread_ = 0;              // bytes in queue_
  uint64_t number_ = 0;            // of the current request
  Clock::time_point linger_until_;
  bool keep_alive_ = false, replying_ = false, begun_ = false, in_chunks_ = false, finished_ = false, closed_ = false;
  bool reading_ahead_ = false, wants_to_read_ = false, late_ = false, half_closed_ = false;
  Waiting waiting_ = Waiting::kForAnything;
  int n_empty_lines_ = 0;  // before the current request
  std::optional<BodyPace> pace_;
  std::string heartbeat_;
  std::function<void()> gone_;
  std::vector<char> waste_;
};

namespace {

class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<HttpSession> session, uint64_t number) : session_(std::move(session)), number_(number) {}
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
  std::shared_ptr<HttpSession> session_;
  uint64_t number_;
};

}  // namespace

namespace {

// A target without its query. Where it is a whole URL (RFC 9112 3.2.2), `authority` is the host and port in it.
struct Target {
  std::optional<std::string_view> authority;
  std::string_view path;
};

Target split_target(std::string_view target) {
  target = target.substr(0, target.find('?'));
  const std::string start = lower_case(target.substr(0, 8));
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!std::string_view(start).starts_with(scheme)) continue;
    const std::string_view rest = target.substr(scheme.size());
    const size_t slash = std::min(rest.find('/'), rest.size());
    return {rest.substr(0, slash), slash == rest.size() ? "/" : rest.substr(slash)};
  }
  return {std::nullopt, target};
}

// The path without repeated slashes and without one at its end.
std::string plain_path(std::string_view target) {
  std::string path;
  for (const char c : target) {
    if (c != '/' || !path.ends_with('/')) path += c;
  }
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Unpacks the body; returns the reply to a request whose body cannot be.
std::optional<HttpResponse> unpack(HttpRequest& request, size_t max_bytes) {
  const std::string_view codings = request.header("content-encoding");
  if (codings.empty()) return std::nullopt;
  HttpResponse response{.status = 200, .content_type = "application/json", .headers = {}, .body = ""};
  switch (decode_body(request.body, codings, max_bytes)) {
    case Decoded::kDone:
      return std::nullopt;
    case Decoded::kUnknownCoding:
      response.status = 415;
      response.headers.emplace_back("accept-encoding", kKnownCodings);
      response.body = problem(std::string("the body's Content-Encoding is not known; expected ") + kKnownCodings);
      break;
    case Decoded::kDamaged:
      response.status = 400;
      response.body = problem("the body is not what its Content-Encoding says");
      break;
    case Decoded::kTooLarge:
      response.status = 413;
      response.body =
          problem("the request's body is larger than " + std::to_string(max_bytes) + " bytes when unpacked");
      break;
  }
  return response;
}

}  // namespace

// RFC 9112 3.2: a request of HTTP/1.1 names one host; 6.1: a transfer coding that is not known is 501.
bool HttpSession::refuse_headers() {
  const http::request<http::string_body>& message = parser_->get();
  const size_t n_hosts = message.count(http::field::host);
  if (n_hosts > 1 || (n_hosts == 0 && message.version() >= 11)) {
    fail(400, n_hosts > 1 ? "two Host headers; expected one" : "no Host header; expected one");
    return true;
  }
  const auto [first, last] = message.equal_range(http::field::transfer_encoding);
  for (auto coding = first; coding != last; ++coding) {
    if (lower_case({coding->value().data(), coding->value().size()}) == "chunked") continue;
    fail(501, "the transfer coding is not known; expected chunked");
    return true;
  }
  return false;
}

void HttpSession::on_request() {
  if (refuse_headers()) return;
  http::request<http::string_body>& message = parser_->get();
  keep_alive_ = message.keep_alive() && !shared_.draining;
  replying_ = true;
  finished_ = false;
  HttpRequest request;
  request.method = message.method_string();
  const std::string_view target(message.target().data(), message.target().size());
  const auto [authority, path] = split_target(target);
  request.path = plain_path(path);
  if (const size_t mark = target.find('?'); mark != std::string_view::npos) request.query = target.substr(mark + 1);
  // The host of a whole URL counts, whatever the header says (RFC 9112 3.2.2).
  if (authority) request.headers.emplace_back("host", *authority);
  for (const auto& field : message) {
    if (authority && field.name() == http::field::host) continue;
    request.headers.emplace_back(lower_case({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value().data(), field.value().size()));
  }
  request.body = std::move(message.body());
  error_code gone;
  const tcp::endpoint peer = stream_.socket().remote_endpoint(gone);
  if (!gone) request.peer = peer.address().to_string();
  end_never();
  watch_client();
  const bool urgent = shared_.options.is_urgent && shared_.options.is_urgent(request.method, request.path);
  auto handle = [this, urgent, r = std::move(request),
                 reply = std::make_shared<Reply>(shared_from_this(), number_)]() mutable {
    std::optional<HttpResponse> refusal;
    if (!urgent) refusal = unpack(r, shared_.options.max_body_bytes);
    if (refusal) return reply->send(*std::move(refusal));
    shared_.handler(std::move(r), std::move(reply));
  };
  asio::post(urgent ? *shared_.urgent : *shared_.workers, std::move(handle));
}

// While a reply is in progress nothing is read; a peek at the socket shows whether the client has gone.
void HttpSession::watch_client() {
  if (stream_.has_tls()) return read_ahead();
  stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this(), number = number_](error_code e) {
    if (e || self->closed_ || number != self->number_ || !self->replying_) return;
    char bytes[2 * kMaxEmptyLines] = {};
    error_code state;
    const size_t n = self->stream_.socket().receive(asio::buffer(bytes), tcp::socket::message_peek, state);
    if (state == asio::error::would_block || state == asio::error::try_again) return self->watch_client();
    if (state == asio::error::eof) return self->on_client_end();
    if (state) return self->close();
    if (!are_empty_lines({bytes, n})) return;  // its next request, which is read later
    self->stream_.socket().receive(asio::buffer(bytes, n), 0, state);
    self->watch_client();
  });
}

// The client has left, or it has closed its sending side and waits for the reply alone (`nc -N`): nothing tells these
// apart. A callback of on_gone() is called, which ends the work for the reply; a reply without one is still sent.
void HttpSession::on_client_end() {
  half_closed_ = true;
  keep_alive_ = false;
  if (gone_ || begun_) close();
}

// TLS records cannot be peeked at: input that arrives while a reply is in progress is read and buffered. A client whose
// next request is in the buffer counts as connected.
void HttpSession::read_ahead() {
  if (reading_ahead_) return;
  if (are_empty_lines({static_cast<const char*>(buffer_.data().data()), buffer_.size()})) buffer_.clear();
  if (buffer_.size() > 0) return;
  reading_ahead_ = true;
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code e, size_t n) {
    self->reading_ahead_ = false;
    if (e == asio::error::eof && (self->replying_ || self->finished_)) return self->on_client_end();
    if (e) return self->close();
    self->buffer_.commit(n);
    if (std::exchange(self->wants_to_read_, false)) return self->read();
    if (self->replying_) self->read_ahead();
  });
}

HttpShared::HttpShared(const HttpOptions& o, HttpServer::Handler h) : options(o), handler(std::move(h)) {
  workers.emplace(static_cast<size_t>(std::max(1, o.n_workers)));
  urgent.emplace(size_t{1});
  if (!o.tls_cert.empty()) tls = server_tls(o.tls_cert, o.tls_key);
}

void HttpSessions::add(HttpSession* session) {
  const std::lock_guard lock(mutex_);
  sessions_.insert(session);
}

void HttpSessions::remove(HttpSession* session) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(session);
  if (sessions_.empty()) empty_.notify_all();
}

size_t HttpSessions::size() const {
  const std::lock_guard lock(mutex_);
  return sessions_.size();
}

bool HttpSessions::wait_until_empty(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return empty_.wait_until(lock, deadline, [&] { return sessions_.empty(); });
}

void HttpSessions::drain_all() {
  std::vector<std::shared_ptr<HttpSession>> alive;  // released without the lock: the last holder's remove() takes it
  {
    const std::lock_guard lock(mutex_);
    for (HttpSession* session : sessions_) {
      if (auto held = session->weak_from_this().lock()) alive.push_back(std::move(held));  // else it is being destroyed
    }
  }
  for (const auto& session : alive) session->drain();
}

void begin_session(tcp::socket socket, HttpShared& shared, bool has_room) {
  auto session = std::make_shared<HttpSession>(std::move(socket), shared);
  has_room ? session->start() : session->refuse();
}

}  // namespace vlcache
