#include "store/redis/pool.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace vlcache {
namespace {

// As many as the images of a prompt that are often loaded at once. Each keeps memory for a value or two.
constexpr size_t kMaxIdle = 4;

Deadline after_ms(double ms) { return Clock::now() + std::chrono::microseconds(static_cast<int64_t>(ms * 1000)); }

}  // namespace

RedisPool::RedisPool(RedisNode node, const RedisSettings& settings, std::function<void()> went_down)
    : node_(std::move(node)),
      settings_(settings),
      went_down_(std::move(went_down)),
      pause_ms_(settings.times.retry_ms) {
  idle_.reserve(kMaxIdle);
}

RedisPool::Lease RedisPool::take(Deadline deadline, Miss& why) {
  const GiveBack give_back{shared_from_this()};
  {
    const std::lock_guard lock(mutex_);
    while (!down_ && !idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      if (connection->fresh()) return {connection.release(), give_back};
    }
    if (down_) {
      why = {MissReason::kIo, *down_};
      return {nullptr, give_back};
    }
  }
  if (Clock::now() >= deadline) {
    why = {MissReason::kLate, "no time left to connect"};
    return {nullptr, give_back};
  }
  std::string problem;
  auto connection = RedisConnection::open(node_, settings_, deadline, problem);
  if (connection == nullptr && Clock::now() >= deadline) {
    why = {MissReason::kLate, problem};  // the server may be healthy
  } else if (connection == nullptr) {
    why = {MissReason::kIo, problem};
    mark_down(std::move(problem));
  }
  return {connection.release(), give_back};
}

void RedisPool::give_back(RedisConnection* connection) noexcept {
  std::unique_ptr<RedisConnection> owned(connection);
  if (owned->broken()) {
    if (owned->server_failed()) mark_down(owned->broken()->detail);
    return;
  }
  // Unread replies would be read as a later request's.
  if (!owned->fresh()) return;
  const std::lock_guard lock(mutex_);
  pause_ms_ = settings_.times.retry_ms;  // the connection has been useful
  if (!down_ && idle_.size() < kMaxIdle) idle_.push_back(std::move(owned));
}

void RedisPool::forget() {
  const std::lock_guard lock(mutex_);
  idle_.clear();
}

bool RedisPool::down() const {
  const std::lock_guard lock(mutex_);
  return down_.has_value();
}

Deadline RedisPool::retry_at() const {
  const std::lock_guard lock(mutex_);
  return retry_at_;
}

void RedisPool::mark_down(std::string problem) {
  {
    const std::lock_guard lock(mutex_);
    idle_.clear();
    if (!down_) retry_at_ = after_ms(pause_ms_);
    down_ = std::move(problem);
  }
  went_down_();
}

void RedisPool::try_again() {
  std::string problem;
  std::unique_ptr<RedisConnection> connection;
  try {
    connection = RedisConnection::open(node_, settings_, kNoDeadline, problem);
  } catch (const std::exception& error) {  // memory, at most
    problem = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (connection != nullptr) {
    down_.reset();
    retry_at_ = kNoDeadline;
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
  } else {
    down_ = std::move(problem);
    retry_at_ = after_ms(pause_ms_);
  }
  // Longer each time, until a connection has been useful: a server that accepts connections and then does not reply
  // is down, too.
  pause_ms_ = std::min(2 * pause_ms_, settings_.times.max_retry_ms);
}

}  // namespace vlcache
