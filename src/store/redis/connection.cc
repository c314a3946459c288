#include "store/redis/connection.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr size_t kReceiveBytes = 256 << 10;
// Room for an error in the place of a value, or for the framing of a value.
constexpr size_t kBesidesBytes = 4096;
constexpr size_t kMaxErrorText = 160;

Clock::duration milliseconds(double ms) { return std::chrono::microseconds(static_cast<int64_t>(ms * 1000)); }

// Milliseconds until the deadline, for poll() and hiredis: at least 1, so that the caller finds a deadline in the past.
int64_t ms_until(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::clamp<int64_t>(left + 1, 1, 3'600'000);
}

// Of send() or recv(), which have failed.
Transfer failed_transfer(short wait_for) {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {0, wait_for, ""};
  return {0, 0, std::strerror(errno)};
}

// hiredis passes every element of a reply to these as soon as it is complete; they return a RedisReply that lives in
// its parent. An array allocates no more than its elements bring with them.
struct Builder {
  RedisReply root;
  std::span<std::byte> into;
};

RedisReply* place(const redisReadTask* task) {
  if (task->parent == nullptr) return &static_cast<Builder*>(task->privdata)->root;
  return &static_cast<RedisReply*>(task->parent->obj)->elements.emplace_back();
}

// Nothing may be thrown through hiredis, which is C. Null: out of memory.
template <typename Fill>
void* built(const redisReadTask* task, Fill fill) noexcept {
  try {
    RedisReply* const reply = place(task);
    fill(*reply);
    return reply;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* build_string(const redisReadTask* task, char* text, size_t n) {
  return built(task, [&](RedisReply& reply) {
    reply.type = task->type == REDIS_REPLY_ERROR    ? RedisReply::Type::kError
                 : task->type == REDIS_REPLY_STATUS ? RedisReply::Type::kStatus
                                                    : RedisReply::Type::kString;
    reply.n_bytes = n;
    const std::span<std::byte> into = static_cast<Builder*>(task->privdata)->into;
    if (task->parent == nullptr && reply.is(RedisReply::Type::kString) && !into.empty() && n == into.size()) {
      std::memcpy(into.data(), text, n);
    } else {
      reply.text.assign(text, n);
    }
  });
}
void* build_array(const redisReadTask* task, int) {
  return built(task, [](RedisReply& reply) { reply.type = RedisReply::Type::kArray; });
}
void* build_integer(const redisReadTask* task, long long value) {  // NOLINT: hiredis' type
  return built(task, [&](RedisReply& reply) {
    reply.type = RedisReply::Type::kInteger;
    reply.integer = value;
  });
}
void* build_nil(const redisReadTask* task) {
  return built(task, [](RedisReply&) {});
}
void free_nothing(void*) {}

redisReplyObjectFunctions builders = {build_string, build_array, build_integer, build_nil, free_nothing};

}  // namespace

struct RedisConnection::Reader {
  Reader() : reader(redisReaderCreateWithFunctions(&builders)) {
    if (reader == nullptr) throw std::bad_alloc();
    reader->privdata = &builder;
    reader->maxbuf = 0;  // keeps its memory between values, which are all of one size
  }
  ~Reader() { redisReaderFree(reader); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  size_t buffered() const { return reader->len - reader->pos; }

  Builder builder;
  redisReader* reader;
  std::vector<char> received = std::vector<char>(kReceiveBytes);
};

RedisConnection::RedisConnection(const RedisSettings& settings)
    : settings_(settings), reader_(std::make_unique<Reader>()) {}

RedisConnection::~RedisConnection() {
  tls_.reset();
  if (context_ != nullptr) redisFree(context_);
}

std::unique_ptr<RedisConnection> RedisConnection::open(const RedisNode& node, const RedisSettings& settings,
                                                       Deadline deadline, std::string& problem) {
  const Deadline limit = std::min(deadline, Clock::now() + milliseconds(settings.times.connect_ms));
  std::unique_ptr<RedisConnection> connection(new RedisConnection(settings));
  if (!connection->connect(node, limit, problem) || !connection->introduce(limit, problem)) return nullptr;
  return connection;
}

bool RedisConnection::connect(const RedisNode& node, Deadline deadline, std::string& problem) {
  const int64_t ms = ms_until(deadline);
  const timeval time{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  context_ = node.local() ? redisConnectUnixWithTimeout(node.host.c_str(), time)
                          : redisConnectWithTimeout(node.host.c_str(), node.port, time);
  if (context_ == nullptr || context_->err != 0) {
    problem = context_ != nullptr ? context_->errstr : "no memory";
    return false;
  }
  if (settings_.tls == nullptr || encrypt(node.host, deadline)) return true;
  const bool late = broken_->reason == MissReason::kLate;
  problem = late ? "TLS: no reply in time; the port may speak Redis without TLS" : broken_->detail;
  return false;
}

bool RedisConnection::encrypt(const std::string& host, Deadline deadline) {
  tls_ = std::make_unique<RedisTlsStream>(*settings_.tls, context_->fd, host);
  Transfer shaken;
  do {
    shaken = tls_->handshake();
    if (shaken.n <= 0 && !settle(shaken, deadline, deadline)) return false;
  } while (shaken.n <= 0);
  return true;
}

bool RedisConnection::introduce(Deadline deadline, std::string& problem) {
  struct Step {
    std::string_view what;
    bool secret;  // the reply may repeat the password
  };
  std::vector<Step> steps;
  if (!settings_.password.empty()) {
    if (settings_.user.empty()) {
      request({"AUTH", settings_.password});
    } else {
      request({"AUTH", settings_.user, settings_.password});
    }
    steps.push_back({"AUTH", true});
  }
  if (settings_.db != 0) {
    request({"SELECT", std::to_string(settings_.db)});
    steps.push_back({"SELECT", false});
  }
  request({"PING"});
  steps.push_back({"PING", false});
  for (const Step& step : steps) {
    RedisReply reply;
    if (!receive(reply, deadline)) {
      problem = broken_->detail;
      return false;
    }
    // A user may lack the right to PING: the refusal, too, is a reply of a server that works.
    const bool no_ping = step.what == "PING" && reply.is(RedisReply::Type::kError) && reply.text.starts_with("NOPERM");
    if (reply.is(RedisReply::Type::kStatus) || no_ping) continue;
    const bool refused = reply.text.starts_with("WRONGPASS") || reply.text.starts_with("ERR invalid password");
    if (refused) {
      problem = "wrong user or password";
    } else if (step.secret) {
      problem = "the server refuses to be given a password";
    } else {
      problem = std::string(step.what) + ": " + text_of(reply);
    }
    return false;
  }
  return true;
}

void RedisConnection::request(std::span<const std::string_view> words) {
  if (broken_) return;
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string_view word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* command = nullptr;
  const int n = redisFormatCommandArgv(&command, static_cast<int>(words.size()), texts.data(), sizes.data());
  if (n < 0) throw std::bad_alloc();
  const std::unique_ptr<char, void (*)(char*)> owned(command, redisFreeCommand);
  out_.append(command, static_cast<size_t>(n));
  ++n_pending_;
}

Deadline RedisConnection::limit(size_t bytes) const {
  return Clock::now() + milliseconds(settings_.times.reply_ms + static_cast<double>(bytes) / 1024);
}

void RedisConnection::break_with(Miss why, bool server_failed) {
  if (!broken_) broken_ = std::move(why);
  server_failed_ = server_failed_ || server_failed;
}

bool RedisConnection::wait(short events, Deadline deadline, Deadline limit) {
  const Deadline until = std::min(deadline, limit);
  while (Clock::now() < until) {
    pollfd poll_for{.fd = context_->fd, .events = events, .revents = 0};
    const int n = poll(&poll_for, 1, static_cast<int>(ms_until(until)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) {
      break_with({MissReason::kIo, std::string("waiting: ") + std::strerror(errno)}, true);
      return false;
    }
  }
  break_with({MissReason::kLate, "no reply in time"}, limit <= deadline);
  return false;
}

Transfer RedisConnection::write_some(std::span<const char> bytes) {
  if (tls_) return tls_->write(bytes);
  const ssize_t n = send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return n >= 0 ? Transfer{n, 0, ""} : failed_transfer(POLLOUT);
}

Transfer RedisConnection::read_some(std::span<char> bytes) {
  if (tls_) return tls_->read(bytes);
  const ssize_t n = recv(context_->fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  return n >= 0 ? Transfer{n, 0, ""} : failed_transfer(POLLIN);
}

bool RedisConnection::settle(const Transfer& transfer, Deadline deadline, Deadline limit) {
  if (transfer.wait_for != 0) return wait(transfer.wait_for, deadline, limit);
  const bool closed = transfer.problem.empty();
  break_with({MissReason::kIo, closed ? "the server has closed the connection" : transfer.problem}, true);
  return false;
}

bool RedisConnection::flush(Deadline deadline) {
  if (broken_) return false;
  const Deadline by = limit(out_.size());
  std::span<const char> rest(out_);
  while (!rest.empty()) {
    const Transfer sent = write_some(rest);
    if (sent.n > 0) {
      rest = rest.subspan(static_cast<size_t>(sent.n));
    } else if (!settle(sent, deadline, by)) {
      return false;
    }
  }
  out_.clear();
  return true;
}

bool RedisConnection::read_more(Deadline deadline, Deadline limit) {
  while (true) {
    const Transfer received = read_some(reader_->received);
    if (received.n > 0) {
      if (redisReaderFeed(reader_->reader, reader_->received.data(), static_cast<size_t>(received.n)) == REDIS_OK) {
        return true;
      }
      break_with({MissReason::kIo, reader_->reader->errstr}, true);
      return false;
    }
    if (!settle(received, deadline, limit)) return false;
  }
}

bool RedisConnection::receive(RedisReply& reply, Deadline deadline, size_t max_bytes, std::span<std::byte> into) {
  CHECK(broken_ || n_pending_ > 0);
  if (!out_.empty() && !flush(deadline)) return false;
  const Deadline by = limit(max_bytes);
  Builder& builder = reader_->builder;
  builder.into = into;
  // Bytes of this reply, parsed whole or in part by hiredis, and perhaps of the beginning of the next.
  size_t n_read = reader_->buffered();
  while (!broken_) {
    void* found = nullptr;
    if (redisReaderGetReply(reader_->reader, &found) != REDIS_OK) {
      break_with({MissReason::kIo, std::string("not Redis' protocol: ") + reader_->reader->errstr}, true);
    } else if (found != nullptr) {
      reply = std::exchange(builder.root, {});
      builder.into = {};
      --n_pending_;
      return true;
    } else if (Clock::now() >= std::min(deadline, by)) {  // also if bytes arrive faster than they are waited for
      break_with({MissReason::kLate, "no reply in time"}, by <= deadline);
    } else if (n_read > max_bytes + kBesidesBytes) {
      break_with({MissReason::kIo, "a reply that is longer than what was asked for"}, true);
    } else {
      const size_t n_before = reader_->buffered();
      read_more(deadline, by);
      n_read += reader_->buffered() - n_before;
    }
  }
  return false;
}

bool RedisConnection::fresh() const {
  if (broken_ || retired_ || n_pending_ > 0 || reader_->buffered() > 0) return false;
  if (tls_) return !tls_->has_input();  // bytes may have arrived that TLS keeps for itself
  pollfd poll_for{.fd = context_->fd, .events = POLLIN, .revents = 0};
  return poll(&poll_for, 1, 0) == 0;
}

std::string text_of(const RedisReply& error, const std::string& password) {
  if (!error.is(RedisReply::Type::kError)) return "a reply of another kind than expected";
  if (!password.empty() && error.text.find(password) != std::string::npos) return "an error that repeats the password";
  std::string text = error.text.substr(0, kMaxErrorText);
  for (char& c : text) c = ' ' <= c && c <= '~' ? c : '?';
  return text;
}

}  // namespace vlcache
