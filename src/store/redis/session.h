// RedisSession sends requests ahead to the nodes that serve their slots, and returns the replies in the order of the
// requests. A reply that names another node is followed, a bounded number of times.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/redis/nodes.h"

namespace vlcache {

class RedisSession {
 public:
  explicit RedisSession(RedisNodes& nodes) : nodes_(nodes) {}

  // Returns again the one word of a request that is longer than a KiB: it is not copied, in case that it must be sent
  // to another node.
  using Supply = std::function<std::string_view()>;

  // Queues a request about a key of this slot. A miss: there is no connection, and nothing was queued.
  std::optional<Miss> request(int slot, std::span<const std::string_view> words, Deadline deadline);
  std::optional<Miss> request(int slot, std::initializer_list<std::string_view> words, Deadline deadline) {
    return request(slot, std::span(words.begin(), words.size()), deadline);
  }
  // Sends the queue. A failure is the result of the next receive().
  void flush(Deadline deadline);
  // The reply to the oldest request without one, as RedisConnection::receive(). A miss is this request's alone, unless
  // its connection broke. long_word: of that request, if it has one.
  std::optional<Miss> receive(RedisReply& reply, Deadline deadline, size_t max_bytes = 0,
                              std::span<std::byte> into = {}, const Supply& long_word = {});
  int64_t n_pending() const { return std::ssize(pending_); }
  // Gives up the requests that are pending.
  void reset();
  // The server of the latest reply does not speak Redis' language: its circuit opens.
  Miss blame(const RedisReply& reply);
  std::string text_of(const RedisReply& error) const { return vlcache::text_of(error, nodes_.password()); }

 private:
  struct Node {
    RedisNodes::Pool pool;
    RedisPool::Lease connection;
  };
  struct Request {
    Node* node = nullptr;
    int slot = 0;
    std::vector<std::string> words;
    size_t long_at = SIZE_MAX;  // which of them is long, and not copied
  };
  struct Target {
    size_t max_bytes;
    std::span<std::byte> into;
    const Supply& long_word;
  };
  // What an error reply means for its request.
  struct Advice {
    enum class What : uint8_t { kTake, kGiveUp, kAgain, kAskThere } what = What::kTake;
    RedisNodes::Pool pool = nullptr;  // the node to repeat it at
    Miss why;                         // to give up
  };

  Node* node_of(RedisNodes::Pool pool, Deadline deadline, Miss& why);
  Advice advice(const RedisReply& reply, int slot, const RedisNodes::Pool& pool, Deadline deadline);
  Advice follow(const RedisReply& reply, int slot, const RedisNodes::Pool& pool, Deadline deadline);
  std::optional<Miss> repeat(const Request& request, RedisReply& reply, Deadline deadline, const Target& target);

  RedisNodes& nodes_;
  std::list<Node> connected_;
  std::deque<Request> pending_;
  Node* latest_ = nullptr;  // the connection of the latest reply
};

}  // namespace vlcache
