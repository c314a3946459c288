// RedisPool holds connections to one Redis server, and knows whether the server is down: then no caller waits for it.
// The thread of RedisNodes tries it again now and then.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/redis/connection.h"

namespace vlcache {

// Shared by RedisNodes and by the lookups in progress: a node may leave its cluster during a lookup.
class RedisPool : public std::enable_shared_from_this<RedisPool> {
 public:
  // Does not connect. The settings must outlive the pool; `went_down` is called without locks, from any thread.
  RedisPool(RedisNode node, const RedisSettings& settings, std::function<void()> went_down);

  // A connection for one user; returns to the pool when destroyed. Null: none available.
  struct GiveBack {
    std::shared_ptr<RedisPool> pool;
    void operator()(RedisConnection* connection) const { pool->give_back(connection); }
  };
  using Lease = std::unique_ptr<RedisConnection, GiveBack>;
  // Null: `why` has the reason. A server that is down costs no time.
  Lease take(Deadline deadline, Miss& why);
  // Closes the idle connections: their server has changed its role.
  void forget();

  const RedisNode& node() const { return node_; }
  bool down() const;
  // When try_again() is due; kNoDeadline: the server is not down.
  Deadline retry_at() const;
  // Connects, and waits for it.
  void try_again();

 private:
  void give_back(RedisConnection* connection) noexcept;
  void mark_down(std::string problem);

  const RedisNode node_;
  const RedisSettings& settings_;
  const std::function<void()> went_down_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
  std::optional<std::string> down_;  // why the server is
  double pause_ms_;                  // before the next try
  Deadline retry_at_ = kNoDeadline;
};

}  // namespace vlcache
