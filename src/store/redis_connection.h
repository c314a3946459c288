// One connection to a Redis server: requests sent ahead, replies in their order, each within its time and its size.
// hiredis connects, writes requests down and reads the protocol; sockets are read and written here.
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
#include "store/redis_address.h"

struct redisContext;

namespace vlcache {

struct RedisReply {
  enum class Type : uint8_t { kNil, kStatus, kError, kInteger, kString, kArray };
  Type type = Type::kNil;
  int64_t integer = 0;
  std::string text;    // of a status, an error, a string that went nowhere else
  size_t n_bytes = 0;  // of a string, wherever it went
  std::vector<RedisReply> elements;

  bool is(Type wanted) const { return type == wanted; }
};

// How long a server that works may take.
struct RedisTimes {
  double connect_ms = 500;  // and for the first reply
  // For a reply, once it is waited for, and a millisecond more for each KiB of it: a server that sends a byte now and
  // then holds nobody up for long.
  double reply_ms = 1000;
  // The first pause before a server that failed is tried again, and the longest.
  double retry_ms = 500, max_retry_ms = 30'000;
};

class RedisConnection {
 public:
  // Connects, says who we are, chooses the database and waits for an answer. Null: `problem` says why, without secrets.
  static std::unique_ptr<RedisConnection> open(const RedisAddress& address, const RedisTimes& times, Deadline deadline,
                                               std::string& problem);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Writes a request down; flush() or the next receive() sends it.
  void request(std::span<const std::string_view> words);
  void request(std::initializer_list<std::string_view> words) { request(std::span(words.begin(), words.size())); }
  bool flush(Deadline deadline);
  // The reply to the oldest request that has none yet. A string as long as `into` goes there. False: broken().
  //   max_bytes: a reply that is much longer (a few KiB are always let through) breaks the connection, before there is
  //   memory for it.
  bool receive(RedisReply& reply, Deadline deadline, size_t max_bytes = 0, std::span<std::byte> into = {});

  // Once something went wrong nothing more is sent or received: a reply that comes late must not be taken for
  // another's.
  const std::optional<Miss>& broken() const { return broken_; }
  void break_with(Miss why, bool server_failed);
  // Whether that was the server's doing, and not the deadline of who asked.
  bool server_failed() const { return server_failed_; }
  int64_t n_pending() const { return n_pending_; }
  // Nobody has closed it or sent what was not asked for.
  bool fresh() const;
  // Of an error reply: printable, short, and not the password.
  std::string text_of(const RedisReply& error) const;

 private:
  struct Reader;
  RedisConnection(const RedisAddress& address, const RedisTimes& times);
  bool connect(Deadline deadline, std::string& problem);
  bool introduce(Deadline deadline, std::string& problem);
  Deadline limit(size_t bytes) const;
  bool wait(short events, Deadline deadline, Deadline limit);
  bool read_some(Deadline deadline, Deadline limit);

  const RedisAddress& address_;
  const RedisTimes& times_;
  redisContext* context_ = nullptr;
  std::unique_ptr<Reader> reader_;
  std::string out_;
  int64_t n_pending_ = 0;  // requests without a reply
  std::optional<Miss> broken_;
  bool server_failed_ = false;
};

}  // namespace vlcache
