#include "store/redis_pool.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "store/quiet_thread.h"

namespace vlcache {
namespace {

// As many as the images of a prompt that are often loaded at once. Each keeps memory for a value or two.
constexpr size_t kMaxIdle = 4;

}  // namespace

RedisPool::RedisPool(RedisAddress address, const RedisTimes& times)
    : address_(std::move(address)), times_(times), pause_ms_(times.retry_ms) {
  idle_.reserve(kMaxIdle);
  std::string problem;
  if (auto connection = RedisConnection::open(address_, times_, kNoDeadline, problem)) {
    idle_.push_back(std::move(connection));
  } else {
    down_ = problem;
  }
  thread_ = start_quiet_thread([this] { try_again(); });
}

RedisPool::~RedisPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

RedisPool::Lease RedisPool::take(Deadline deadline, Miss& why) {
  {
    std::unique_lock lock(mutex_);
    while (!down_ && !idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      if (connection->fresh()) return {connection.release(), {this}};
    }
    if (down_) {
      why = {MissReason::kIo, *down_};
      return {nullptr, {this}};
    }
  }
  if (Clock::now() >= deadline) {
    why = {MissReason::kLate, "no time left to connect"};
    return {nullptr, {this}};
  }
  std::string problem;
  auto connection = RedisConnection::open(address_, times_, deadline, problem);
  if (connection == nullptr && Clock::now() >= deadline) {
    why = {MissReason::kLate, problem};  // the server may be healthy
  } else if (connection == nullptr) {
    why = {MissReason::kIo, problem};
    down(std::move(problem));
  }
  return {connection.release(), {this}};
}

void RedisPool::give_back(RedisConnection* connection) noexcept {
  std::unique_ptr<RedisConnection> owned(connection);
  if (owned->broken()) {
    if (owned->server_failed()) down(owned->broken()->detail);
    return;
  }
  // Unread replies would be taken for those of a later request.
  if (!owned->fresh()) return;
  const std::lock_guard lock(mutex_);
  pause_ms_ = times_.retry_ms;  // the connection has been useful
  if (!down_ && idle_.size() < kMaxIdle) idle_.push_back(std::move(owned));
}

void RedisPool::down(std::string problem) {
  {
    const std::lock_guard lock(mutex_);
    idle_.clear();
    down_ = std::move(problem);
  }
  changed_.notify_all();
}

void RedisPool::try_again() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || down_; });
    const auto pause = std::chrono::microseconds(static_cast<int64_t>(pause_ms_ * 1000));
    if (changed_.wait_for(lock, pause, [&] { return stopping_; })) return;
    if (stopping_) return;
    // Longer each time, until a connection has been useful: a server that accepts connections and then does not reply
    // is down, too.
    pause_ms_ = std::min(2 * pause_ms_, times_.max_retry_ms);
    lock.unlock();
    std::string problem;
    std::unique_ptr<RedisConnection> connection;
    try {
      connection = RedisConnection::open(address_, times_, kNoDeadline, problem);
    } catch (const std::exception& error) {  // memory, at most
      problem = error.what();
    }
    lock.lock();
    if (connection != nullptr) {
      down_.reset();
      if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
    } else {
      down_ = std::move(problem);
    }
  }
}

}  // namespace vlcache
