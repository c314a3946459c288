// RedisConnection is one connection to a Redis server: requests are sent ahead, replies read in their order, each
// within its time and its size. hiredis connects, formats requests and parses the protocol; sockets are read and
// written here, through TLS if the address says so (store/redis/tls.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/kv_tier.h"
#include "store/redis/address.h"
#include "store/redis/tls.h"

struct redisContext;

namespace vlcache {

struct RedisReply {
  enum class Type : uint8_t { kNil, kStatus, kError, kInteger, kString, kArray };
  Type type = Type::kNil;
  int64_t integer = 0;
  std::string text;    // of a status, an error, or a string that was not read into a target
  size_t n_bytes = 0;  // of a string, wherever it was stored
  std::vector<RedisReply> elements;

  bool is(Type wanted) const { return type == wanted; }
};

// Time limits for a server that works.
struct RedisTimes {
  double connect_ms = 500;  // and for the first reply
  // For a reply, from when it is waited for, plus a millisecond for each KiB of it: a server that sends a byte now and
  // then cannot block the caller for long.
  double reply_ms = 1000;
  // The first and the longest pause before a failed server is tried again.
  double retry_ms = 500, max_retry_ms = 30'000;
};

// What the connections to all nodes of an address share.
struct RedisSettings {
  std::string user, password;  // empty: none
  int db = 0;
  RedisTimes times;
  std::unique_ptr<const RedisTls> tls;  // null: not encrypted
};

// The text of an error reply: printable, short, and without the password.
std::string text_of(const RedisReply& error, const std::string& password);

class RedisConnection {
 public:
  // Connects, authenticates, selects the database and waits for a reply. Null: `problem` has the reason, without
  // secrets. The settings must outlive the connection.
  static std::unique_ptr<RedisConnection> open(const RedisNode& node, const RedisSettings& settings, Deadline deadline,
                                               std::string& problem);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Queues a request; flush() or the next receive() sends it.
  void request(std::span<const std::string_view> words);
  void request(std::initializer_list<std::string_view> words) { request(std::span(words.begin(), words.size())); }
  bool flush(Deadline deadline);
  // The reply to the oldest request without one. A string as long as `into` is stored there. False: broken().
  //   max_bytes: a reply that is much longer (a few KiB are always accepted) breaks the connection before memory is
  //   allocated for it.
  bool receive(RedisReply& reply, Deadline deadline, size_t max_bytes = 0, std::span<std::byte> into = {});

  // After an error nothing more is sent or received: a late reply must not be taken for another request's.
  const std::optional<Miss>& broken() const { return broken_; }
  void break_with(Miss why, bool server_failed);
  // Whether the server caused that, and not the caller's deadline.
  bool server_failed() const { return server_failed_; }
  int64_t n_pending() const { return n_pending_; }
  // From now on it is not fresh(): it is closed after this use.
  void retire() { retired_ = true; }
  // Whether the connection is open, is not retired, and has no unexpected bytes to read.
  bool fresh() const;
  std::string text_of(const RedisReply& error) const { return vlcache::text_of(error, settings_.password); }

 private:
  struct Reader;
  explicit RedisConnection(const RedisSettings& settings);
  bool connect(const RedisNode& node, Deadline deadline, std::string& problem);
  bool encrypt(const std::string& host, Deadline deadline);
  bool introduce(Deadline deadline, std::string& problem);
  Deadline limit(size_t bytes) const;
  bool wait(short events, Deadline deadline, Deadline limit);
  Transfer write_some(std::span<const char> bytes);
  Transfer read_some(std::span<char> bytes);
  // Whether to try again; false: broken().
  bool settle(const Transfer& transfer, Deadline deadline, Deadline limit);
  bool read_more(Deadline deadline, Deadline limit);

  const RedisSettings& settings_;
  redisContext* context_ = nullptr;
  std::unique_ptr<RedisTlsStream> tls_;
  std::unique_ptr<Reader> reader_;
  std::string out_;
  int64_t n_pending_ = 0;  // requests without a reply
  std::optional<Miss> broken_;
  bool server_failed_ = false, retired_ = false;
};

}  // namespace vlcache
