// RedisPool holds connections to a Redis server, and knows whether the server is down: then no caller waits for it,
// only a thread that tries again now and then.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "store/redis_connection.h"

namespace vlcache {

class RedisPool {
 public:
  // Tries the server once; an unreachable one is no error.
  RedisPool(RedisAddress address, const RedisTimes& times);
  ~RedisPool();
  RedisPool(const RedisPool&) = delete;
  RedisPool& operator=(const RedisPool&) = delete;

  // A connection for one user; returns to the pool when destroyed. Null: none available.
  struct GiveBack {
    RedisPool* pool = nullptr;
    void operator()(RedisConnection* connection) const { pool->give_back(connection); }
  };
  using Lease = std::unique_ptr<RedisConnection, GiveBack>;
  // Null: `why` has the reason. A server that is down costs no time.
  Lease take(Deadline deadline, Miss& why);
  const RedisAddress& address() const { return address_; }

 private:
  void give_back(RedisConnection* connection) noexcept;
  void down(std::string problem);
  void try_again();

  const RedisAddress address_;
  const RedisTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
  std::optional<std::string> down_;  // why the server is
  double pause_ms_;                  // before the next try
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace vlcache
