// Replies of all kinds over real sockets, to clients that follow the protocol and clients that do not.
#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zstd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/http/content_coding.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;

class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { leave(); }
  void leave() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void send(std::string_view text) const { EXPECT_TRUE(could_send(text)); }
  bool could_send(std::string_view text) const {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // It sends no more, and still reads.
  void end_sending() const { EXPECT_EQ(shutdown(fd_, SHUT_WR), 0); }
  // Reads until the text has arrived (by default, until the connection ends, which it must).
  std::string read(std::string_view until = "no such text") {
    char piece[4096];
    while (seen_.find(until) == seen_.npos) {
      const ssize_t n = recv(fd_, piece, sizeof piece, 0);
      if (n < 0) {
        EXPECT_NE(errno, EAGAIN) << "the connection stays open after: " << seen_;
      }
      if (n <= 0) break;
      seen_.append(piece, static_cast<size_t>(n));
    }
    return seen_;
  }

 private:
  int fd_;
  std::string seen_;
};

// Holds replies until a test completes them.
class Replies {
 public:
  HttpServer::Handler handler() {
    return [this](HttpRequest, HttpReplyPtr reply) {
      const std::lock_guard lock(mutex_);
      replies_.push_back(std::move(reply));
    };
  }
  HttpReplyPtr next() {
    for (int i = 0; i < 2000; ++i, std::this_thread::sleep_for(1ms)) {
      const std::lock_guard lock(mutex_);
      if (replies_.empty()) continue;
      HttpReplyPtr reply = std::move(replies_.back());
      replies_.pop_back();
      return reply;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::vector<HttpReplyPtr> replies_;
};

bool comes_true(const std::function<bool()>& what) {
  for (int i = 0; i < 5000 && !what(); ++i) std::this_thread::sleep_for(1ms);
  return what();
}

constexpr std::string_view kGet = "GET /x?y=z HTTP/1.1\r\nHost: h\r\nX-Mine: v\r\n\r\n";

TEST(HttpServer, PassesRequestsToTheHandlerAndSendsItsReply) {
  HttpServer server({}, [](const HttpRequest& r, const HttpReplyPtr& reply) {
    const std::string said =
        r.method + " " + r.path + " " + r.query + " " + std::string(r.header("x-mine")) + " " + r.body;
    reply->send({.status = 201, .content_type = "text/plain", .headers = {{"a", "b"}}, .body = said});
    reply->send({});  // too late
  });
  Client client(server.port());
  client.send("POST //x/?y=z HTTP/1.1\r\nHost: h\r\nX-Mine: v\r\nContent-Length: 2\r\n\r\nhi");
  const std::string first = client.read("POST /x y=z v hi");
  EXPECT_TRUE(first.starts_with("HTTP/1.1 201 Created\r\n")) << first;
  EXPECT_NE(first.find("a: b\r\n"), first.npos);
  client.send("GET http://h HTTP/1.1\r\nHost: h\r\nconnection: close\r\n\r\n");
  EXPECT_TRUE(client.read().ends_with("GET /   "));
}

TEST(HttpServer, HostOfAWholeUrlCounts) {
  HttpServer server({}, [](const HttpRequest& r, const HttpReplyPtr& reply) {
    reply->send({.status = 200, .body = "<" + std::string(r.header("host")) + ">" + r.path + ";"});
  });
  Client client(server.port());
  client.send("GET HTTP://evil.example:81/x?y HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read(";").find("<evil.example:81>/x;"), std::string::npos);
  client.send("GET https://evil.example?/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read("/;").find("<evil.example>/;"), std::string::npos);
  client.send("GET /http://evil.example/x HTTP/1.1\r\nHost: localhost\r\nconnection: close\r\n\r\n");
  EXPECT_TRUE(client.read().ends_with("<localhost>/http:/evil.example/x;"));
}

TEST(HttpServer, ChunkedRepliesAreSentAsTheyAreWritten) {
  Replies replies;
  HttpServer server({.heartbeat = 20ms}, replies.handler());
  Client client(server.port());
  client.send(kGet);
  HttpReplyPtr reply = replies.next();
  reply->begin({.content_type = "text/plain"}, "~");
  EXPECT_NE(client.read("1\r\n~\r\n1\r\n~\r\n").find("transfer-encoding: chunked"), std::string::npos);
  reply->write("some words");
  client.read("a\r\nsome words\r\n");
  reply->end();
  EXPECT_TRUE(client.read("0\r\n\r\n").ends_with("0\r\n\r\n"));
  client.send(kGet);  // the connection stays open
  replies.next()->send({.status = 204});
  client.read("204");
}

struct Stream {
  const char* what;
  std::string request;
  std::string ends_with;  // the reply does
};

// Without chunks, the end of the connection is the end of the reply. It must not depend on another write: here the
// client has read all of the reply before its end is known.
TEST(HttpServer, BegunRepliesEndWithoutAnotherWrite) {
  const std::string to_1_0 = "GET /x HTTP/1.0\r\n", to_1_1 = "GET /x HTTP/1.1\r\nhost: h\r\n";
  const Stream streams[] = {
      {"1.0", to_1_0 + "\r\n", "piece"},
      {"1.0, kept alive", to_1_0 + "connection: keep-alive\r\n\r\n", "piece"},
      {"1.0, another request after it", to_1_0 + "\r\nGET /second HTTP/1.0\r\n\r\n", "piece"},
      {"1.1, closed", to_1_1 + "connection: close\r\n\r\n", "5\r\npiece\r\n0\r\n\r\n"},
      {"HEAD of 1.0", "HEAD /x HTTP/1.0\r\n\r\n", "\r\n\r\n"},
      {"HEAD of 1.1", "HEAD /x HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n", "\r\n\r\n"},
  };
  Replies replies;
  HttpServer server({}, replies.handler());
  for (const auto& [what, request, ends_with] : streams) {
    for (int i = 0; i < 30; ++i) {
      const bool with_piece = i % 3 > 0;
      const bool in_one_go = i % 3 == 2;  // the end is known before the piece is written
      Client client(server.port());
      client.send(request);
      const HttpReplyPtr reply = replies.next();
      reply->begin({.content_type = "text/event-stream"}, "");
      if (!in_one_go) client.read("\r\n\r\n");
      if (with_piece) reply->write("piece");
      if (with_piece && !in_one_go && !request.starts_with("HEAD")) client.read("piece");
      reply->end();
      const std::string seen = client.read();
      EXPECT_TRUE(seen.starts_with("HTTP/1.1 200 OK\r\n")) << what << ": " << seen;
      EXPECT_NE(seen.find("connection: close\r\n"), seen.npos) << what << ": " << seen;
      if (with_piece) {
        EXPECT_TRUE(seen.ends_with(ends_with)) << what << ": " << seen;
      }
      EXPECT_EQ(seen.find("HTTP/1.1", 1), seen.npos) << what << ": " << seen;
    }
  }
  EXPECT_TRUE(comes_true([&] { return server.n_connections() == 0; }));
}

// The head of a stream, asked for by HEAD, is a whole reply: the next request on the connection follows.
TEST(HttpServer, HeadOfAStreamHasNoPieces) {
  Replies replies;
  HttpServer server({.heartbeat = 1ms}, replies.handler());
  Client client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.send("HEAD /x HTTP/1.1\r\nhost: h\r\n\r\n");
    const HttpReplyPtr reply = replies.next();
    reply->begin({}, "beat");
    std::this_thread::sleep_for(5ms);
    reply->write("piece");
    reply->end();
  }
  client.send("GET /x HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
  replies.next()->send({.status = 204});
  const std::string seen = client.read();
  EXPECT_EQ(seen.find("piece"), seen.npos) << seen;
  EXPECT_EQ(seen.find("beat"), seen.npos) << seen;
  client.leave();
  EXPECT_TRUE(comes_true([&] { return server.n_connections() == 0; }));
}

// All of it arrives, however late the client reads, and the end after it.
TEST(HttpServer, SlowReadersOfUnchunkedRepliesGetThemWhole) {
  Replies replies;
  HttpServer server({.max_unread_bytes = 16 << 20}, replies.handler());
  Client client(server.port(), /*receive_buffer=*/64 << 10);
  client.send("GET /x HTTP/1.0\r\n\r\n");
  const HttpReplyPtr reply = replies.next();
  reply->begin({}, "");
  for (int i = 0; i < 40; ++i) reply->write(std::string(100'000, 'x'));
  reply->end();
  std::this_thread::sleep_for(20ms);
  const std::string seen = client.read();
  EXPECT_EQ(seen.size() - seen.find("\r\n\r\n") - 4, 4'000'000u);
}

// The server has replied before it has read the body. A client that reads the reply only after it has sent everything
// gets it, too, and no reset.
TEST(HttpServer, RefusedUploadsGetTheirReply) {
  Replies replies;
  HttpServer server({.max_header_bytes = 1000, .max_body_bytes = 10}, replies.handler());
  for (const char* request : {"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 4000000\r\n\r\n",
                              "POST / HTTP/1.0\r\ncontent-length: 4000000\r\n\r\n",
                              "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3d0900\r\n"}) {
    Client client(server.port());
    client.send(request);
    for (int i = 0; i < 40; ++i) client.send(std::string(100'000, 'x'));
    const std::string seen = client.read();
    EXPECT_TRUE(seen.starts_with("HTTP/1.1 413 ")) << request << seen;
    EXPECT_NE(seen.find("connection: close"), seen.npos) << seen;
  }
}

TEST(HttpServer, ReportsADisconnectedClient) {
  for (const bool begun : {false, true}) {
    Replies replies;
    HttpServer server({}, replies.handler());
    Client client(server.port());
    client.send(kGet);
    HttpReplyPtr reply = replies.next();
    if (begun) client.send("\r\n");  // as after a body: no other request
    if (begun) reply->begin({}, "");
    std::atomic<int> n_gone = 0;
    reply->on_gone([&] { ++n_gone; });
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(n_gone, 0);
    client.leave();
    EXPECT_TRUE(comes_true([&] { return n_gone == 1; }));
    reply->on_gone([&] { ++n_gone; });  // it has already gone
    EXPECT_TRUE(comes_true([&] { return n_gone == 2; }));
    reply->write("to nobody");
    reply->end();
    reply.reset();
    EXPECT_TRUE(comes_true([&] { return server.n_connections() == 0; }));
  }
}

TEST(HttpServer, ClientThatDoesNotReadIsDisconnected) {
  Replies replies;
  HttpServer server({.max_unread_bytes = 100'000}, replies.handler());
  Client client(server.port(), /*receive_buffer=*/4096);
  client.send(kGet);
  HttpReplyPtr reply = replies.next();
  std::atomic<bool> gone = false;
  reply->begin({}, "");
  reply->on_gone([&] { gone = true; });
  for (int i = 0; i < 20'000 && !gone; ++i) reply->write(std::string(1000, 'x'));
  EXPECT_TRUE(comes_true([&] { return gone.load(); }));
}

TEST(HttpServer, SilentClientIsDisconnected) {
  Replies replies;
  HttpServer server({.idle_timeout = 30ms, .request_timeout = 30ms}, replies.handler());
  Client silent(server.port()), slow(server.port());
  slow.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf");
  EXPECT_EQ(silent.read(), "");
  EXPECT_TRUE(slow.read().starts_with("HTTP/1.1 408 Request Timeout\r\n"));
  slow.leave();
  EXPECT_TRUE(comes_true([&] { return server.n_connections() == 0; }));
}

// Each of these sends a few bytes every 20 ms, for as long as it is let.
TEST(HttpServer, DrippingClientsAreToldSo) {
  const std::string post = "POST / HTTP/1.1\r\nhost: h\r\n", chunked = post + "transfer-encoding: chunked\r\n\r\n";
  const std::string half(500, 'h');
  const struct {
    std::string begin, drip, says;
  } drips[] = {
      {"POST /", "a", "the request's headers did not arrive in time"},
      {post + "x: y", "z", "the request's headers did not arrive in time"},
      {"", "\r\n", ""},  // no request has begun
      {post + "content-length: 1000\r\n\r\n", "", "the request's body stopped arriving: no byte in 0.2 s"},
      {post + "content-length: 1000\r\n\r\n" + half, "", "the request's body stopped arriving: no byte in 0.2 s"},
      {post + "content-length: 1000\r\n\r\n", "x", "arrives too slowly: fewer than 900 bytes per second after"},
      {"POST / HTTP/1.0\r\ncontent-length: 1000\r\n\r\n", "x", "fewer than 900 bytes per second after the first 0.2 s"},
      {chunked, "1\r\nx\r\n", "arrives too slowly"},
      {chunked, "1;extension=\"of no use\"\r\nx\r\n", "arrives too slowly"},
      {chunked + "1;", "a", "no byte in 0.2 s"},
      {chunked + "1f4\r\n" + half + "\r\n0\r\n", "a: b\r\n", "no byte in 0.2 s"},
      {"\r\n" + chunked + "3e8\r\n", "xy", "arrives too slowly"},
  };
  Replies replies;
  HttpServer server({.idle_timeout = 240ms, .request_timeout = 200ms, .min_bytes_per_s = 900}, replies.handler());
  std::deque<Client> clients;
  for (const auto& drip : drips) clients.emplace_back(server.port()).send(drip.begin);
  for (int i = 0; i < 30; ++i, std::this_thread::sleep_for(20ms)) {
    for (size_t c = 0; c < std::size(drips); ++c) clients[c].could_send(drips[c].drip);
  }
  for (size_t c = 0; c < std::size(drips); ++c) {
    const std::string seen = clients[c].read();
    EXPECT_EQ(seen.starts_with("HTTP/1.1 408 "), !drips[c].says.empty()) << drips[c].begin << ": " << seen;
    EXPECT_EQ(seen.find("connection: close") != seen.npos, !drips[c].says.empty()) << seen;
    EXPECT_NE(seen.find(drips[c].says), seen.npos) << drips[c].begin << ": " << seen;
  }
  clients.clear();
  EXPECT_TRUE(comes_true([&] { return server.n_connections() == 0; }));
}

// Bodies that need longer than request_timeout, without a silence as long.
TEST(HttpServer, SteadyUploadsAreReadToTheirEnd) {
  const std::string post = "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n";
  const struct {
    std::string begin, piece, end;
  } uploads[] = {
      {post + "content-length: 24\r\n\r\n", "abcd", ""},
      {post + "expect: 100-Continue\r\ncontent-length: 24\r\n\r\n", "abcd", ""},
      {"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 24\r\n\r\n", "abcd", ""},
      {post + "transfer-encoding: chunked\r\n\r\n", "2\r\nab\r\n2;x=y\r\ncd\r\n", "0\r\n\r\n"},
      {post + "transfer-encoding: chunked\r\n\r\n18\r\n", "abcd", "\r\n0\r\nx: y\r\n\r\n"},
  };
  HttpServer server({.request_timeout = 1s, .min_bytes_per_s = 1, .body_timeout = 60s},
                    [](const HttpRequest& r, const HttpReplyPtr& reply) { reply->send({.body = "<" + r.body + ">"}); });
  std::deque<Client> clients;
  for (const auto& upload : uploads) clients.emplace_back(server.port()).send(upload.begin);
  for (int i = 0; i < 6; ++i) {
    std::this_thread::sleep_for(250ms);
    for (size_t c = 0; c < std::size(uploads); ++c) clients[c].send(uploads[c].piece);
  }
  for (size_t c = 0; c < std::size(uploads); ++c) {
    clients[c].send(uploads[c].end);
    const std::string seen = clients[c].read();
    const bool told = uploads[c].begin.find("100-Continue") != std::string::npos;
    EXPECT_TRUE(seen.starts_with(told ? "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK" : "HTTP/1.1 200 OK")) << seen;
    EXPECT_TRUE(seen.ends_with("<abcdabcdabcdabcdabcdabcd>")) << uploads[c].begin << seen;
  }
}

TEST(HttpServer, EmptyLinesBeforeARequestAreIgnored) {
  HttpServer server({},
                    [](const HttpRequest& r, const HttpReplyPtr& reply) { reply->send({.body = "<" + r.path + ">"}); });
  const std::string get = "GET /x HTTP/1.1\r\nhost: h\r\n\r\n", last = "GET /y HTTP/1.0\r\n\r\n";
  for (const std::vector<std::string>& pieces : std::vector<std::vector<std::string>>{
           {"\r\n" + last},
           {"\n" + last},
           {"\r\n\r\n\n\r\n" + last},
           {"\r\n", last},
           {"\r", "\n", "\r\nG", last.substr(1)},
           {get + "\r\n" + last},
           {get, "\r\n", "\r\n", get, "\r\n" + last},
           {"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nab\r\n", last},
       }) {
    Client client(server.port());
    for (const std::string& piece : pieces) {
      client.send(piece);
      if (pieces.size() > 1) std::this_thread::sleep_for(2ms);
    }
    EXPECT_TRUE(client.read().ends_with("</y>"));
  }
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += "\r\n";
  for (const std::string& start :
       {many, many.substr(0, 34), std::string("\r"), std::string("\r\r\n"), std::string(" \r\n")}) {
    Client client(server.port());
    client.could_send(start + last);
    EXPECT_TRUE(client.read().starts_with("HTTP/1.1 400 ")) << start.size();
  }
}

// `nc -N`: a reply that is sent at once arrives. Work that would be for a client that has left ends.
TEST(HttpServer, HalfClosedClientsGetShortReplies) {
  Replies replies;
  HttpServer server({}, replies.handler());
  for (const char* request :
       {"GET /x HTTP/1.1\r\nhost: h\r\n\r\n", "GET /x HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"}) {
    Client client(server.port());
    client.send(request);
    client.end_sending();
    const HttpReplyPtr reply = replies.next();
    std::this_thread::sleep_for(5ms);
    reply->send({.body = "short"});
    EXPECT_TRUE(client.read().ends_with("short"));
  }
  for (const bool asked_before : {false, true}) {
    Client client(server.port());
    client.send(kGet);
    if (!asked_before) client.end_sending();
    const HttpReplyPtr reply = replies.next();
    std::atomic<bool> gone = false;
    if (!asked_before) std::this_thread::sleep_for(5ms);
    reply->on_gone([&] { gone = true; });
    if (asked_before) client.end_sending();
    EXPECT_TRUE(comes_true([&] { return gone.load(); }));
    reply->send({.body = "part of an answer"});
    EXPECT_EQ(client.read(), "");
  }
  EXPECT_TRUE(comes_true([&] { return server.n_connections() == 0; }));
}

TEST(HttpServer, ExtensionsAndTrailersOfChunksAreBounded) {
  HttpServer server({.max_header_bytes = 1000},
                    [](const HttpRequest& r, const HttpReplyPtr& reply) { reply->send({.body = "<" + r.body + ">"}); });
  const std::string chunked = "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
  const std::string long_text(1'000'000, 'a');
  for (const std::string& body : {"1;" + long_text, "1;a=" + long_text + "\r\nx\r\n0\r\n\r\n",
                                  "1\r\nx\r\n0\r\na: " + long_text, "0;" + long_text}) {
    Client client(server.port());
    client.could_send(chunked + body);
    const std::string seen = client.read();
    EXPECT_TRUE(seen.starts_with("HTTP/1.1 400 ")) << seen;
    EXPECT_NE(seen.find("too large"), seen.npos) << seen;
  }
  Client client(server.port());
  client.send(chunked + "2;a=b;c\r\nxy\r\n1;d=\"e\"\r\nz\r\n0;f\r\ntrailer: g\r\n\r\n");
  EXPECT_TRUE(client.read().ends_with("<xyz>"));
}

TEST(HttpServer, StreamsAreNotHeldBackByProxies) {
  Replies replies;
  HttpServer server({}, replies.handler());
  for (const bool own : {false, true}) {
    Client client(server.port());
    client.send("GET /x HTTP/1.0\r\n\r\n");
    const HttpReplyPtr reply = replies.next();
    HttpResponse head{.content_type = "text/event-stream"};
    if (own) head.headers.emplace_back("Cache-Control", "no-store");
    reply->begin(head, "");
    reply->end();
    const std::string seen = client.read();
    EXPECT_NE(seen.find("\r\nx-accel-buffering: no\r\n"), seen.npos) << seen;
    EXPECT_EQ(seen.find("cache-control: no-cache\r\n") == seen.npos, own) << seen;
  }
}

TEST(HttpServer, LimitsAreEnforced) {
  Replies replies;
  HttpServer server({.max_header_bytes = 1000, .max_body_bytes = 10, .max_connections = 3}, replies.handler());
  Client large(server.port()), long_header(server.port()), no_http(server.port()), fourth(server.port());
  EXPECT_TRUE(fourth.read().starts_with("HTTP/1.1 503"));
  large.send("POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n");
  EXPECT_TRUE(large.read().starts_with("HTTP/1.1 413"));
  long_header.send("GET / HTTP/1.1\r\nx: " + std::string(2000, 'y'));
  EXPECT_TRUE(long_header.read().starts_with("HTTP/1.1 431"));
  no_http.send("\x16\x03\x01\r\n\r\n");
  EXPECT_TRUE(no_http.read().starts_with("HTTP/1.1 400"));
}

TEST(HttpServer, DroppedReplyClosesTheConnection) {
  HttpServer server({}, [](const HttpRequest&, const HttpReplyPtr&) {});
  Client client(server.port());
  client.send(kGet);
  EXPECT_EQ(client.read(), "");
}

TEST(HttpServer, DrainingWaitsForReplies) {
  Replies replies;
  HttpServer server({}, replies.handler());
  Client idle(server.port()), waiting(server.port());
  waiting.send(kGet);
  HttpReplyPtr reply = replies.next();
  EXPECT_FALSE(server.drain(std::chrono::steady_clock::now() + 50ms));
  EXPECT_EQ(idle.read(), "");
  EXPECT_EQ(server.n_connections(), 1u);
  std::future<bool> drained = std::async([&] { return server.drain(std::chrono::steady_clock::now() + 10s); });
  reply->send({.body = "at last"});
  reply.reset();
  EXPECT_TRUE(waiting.read().ends_with("at last"));
  EXPECT_TRUE(drained.get());
}

// Busy workers and packed bodies are not waited for.
TEST(HttpServer, UrgentRequestsHaveAThreadOfTheirOwn) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> n_busy = 0;
  HttpServer server({.n_workers = 2,
                     .is_urgent = [](std::string_view method,
                                     std::string_view path) { return method == "GET" && path == "/health"; }},
                    [&](const HttpRequest& request, const HttpReplyPtr& reply) {
                      if (request.path != "/health" || request.method != "GET") {
                        ++n_busy;
                        released.wait();
                      }
                      reply->send({.status = 200, .content_type = "text/plain", .headers = {}, .body = request.body});
                    });
  const Client busy[] = {Client(server.port()), Client(server.port()), Client(server.port())};
  busy[0].send("POST /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
  busy[1].send("GET /other HTTP/1.1\r\nhost: localhost\r\n\r\n");
  busy[2].send("GET /other HTTP/1.1\r\nhost: localhost\r\n\r\n");
  while (n_busy < 2) std::this_thread::sleep_for(1ms);
  Client urgent(server.port());
  urgent.send(
      "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-encoding: gzip\r\ncontent-length: "
      "3\r\n\r\nabc");
  const std::string reply = urgent.read();
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 200 ")) << reply;
  EXPECT_TRUE(reply.ends_with("\r\n\r\nabc")) << reply;
  EXPECT_EQ(n_busy, 2);
  release.set_value();
}

TEST(HttpServer, PortInUseIsAnError) {
  HttpServer server({}, [](const HttpRequest&, const HttpReplyPtr&) {});
  try {
    HttpServer second({.port = server.port()}, [](const HttpRequest&, const HttpReplyPtr&) {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--port"), std::string::npos) << e.what();
  }
}

std::string zstd_frame(std::string_view text, int window_log = 0) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> encoder(ZSTD_createCCtx(), ZSTD_freeCCtx);
  if (window_log > 0) ZSTD_CCtx_setParameter(encoder.get(), ZSTD_c_windowLog, window_log);
  ZSTD_CCtx_setParameter(encoder.get(), ZSTD_c_contentSizeFlag, window_log > 0 ? 0 : 1);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  ZSTD_inBuffer from{text.data(), text.size(), 0};
  // In two calls: a frame of one call has a window as small as its content.
  if (window_log > 0) ZSTD_compressStream2(encoder.get(), &to, &from, ZSTD_e_flush);
  ZSTD_compressStream2(encoder.get(), &to, &from, ZSTD_e_end);
  out.resize(to.pos);
  return out;
}

TEST(ContentCoding, Zstd) {
  constexpr size_t kMost = 1 << 20;
  const std::string text(300'000, 'x'), frame = zstd_frame(text);
  const struct {
    const char* what;
    std::string body, codings;
    Decoded done;
    std::string text;
  } cases[] = {
      {"a frame", frame, "zstd", Decoded::kDone, text},
      {"any case", frame, " ZSTD , identity", Decoded::kDone, text},
      {"frames", frame + zstd_frame("y"), "zstd", Decoded::kDone, text + "y"},
      {"an empty frame", zstd_frame(""), "zstd", Decoded::kDone, ""},
      {"twice", zstd_frame(frame), "zstd, zstd", Decoded::kDone, text},
      {"a window of 8 MiB", zstd_frame(text, 23), "zstd", Decoded::kDone, text},
      {"a window of 128 MiB", zstd_frame(text, 27), "zstd", Decoded::kDamaged, ""},
      {"exactly the limit", zstd_frame(std::string(kMost, 'x')), "zstd", Decoded::kDone, std::string(kMost, 'x')},
      {"a byte more", zstd_frame(std::string(kMost + 1, 'x')), "zstd", Decoded::kTooLarge, ""},
      {"a bomb", zstd_frame(zstd_frame(std::string(100 << 20, '\0'))), "zstd, zstd", Decoded::kTooLarge, ""},
      {"nothing", "", "zstd", Decoded::kDamaged, ""},
      {"cut", frame.substr(0, frame.size() - 1), "zstd", Decoded::kDamaged, ""},
      {"a cut second frame", frame + frame.substr(0, 5), "zstd", Decoded::kDamaged, ""},
      {"bytes after it", frame + "{}", "zstd", Decoded::kDamaged, ""},
      {"no frame", "{}", "zstd", Decoded::kDamaged, ""},
      {"gzip's name", frame, "gzip", Decoded::kDamaged, ""},
      {"another coding", frame, "br", Decoded::kUnknownCoding, ""},
  };
  for (const auto& c : cases) {
    std::string body = c.body;
    EXPECT_EQ(decode_body(body, c.codings, kMost), c.done) << c.what;
    if (c.done == Decoded::kDone) {
      EXPECT_TRUE(body == c.text) << c.what;
    }
  }
}

}  // namespace
}  // namespace vlcache
