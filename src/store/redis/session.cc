#include "store/redis/session.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"

namespace vlcache {
namespace {

// A key that moves while it is looked up is found after one or two; nodes that disagree send a client in circles.
constexpr int kMaxRedirects = 5;
constexpr size_t kCopiedBytes = 1024;
// While a slot moves, a node may need a moment.
constexpr std::chrono::milliseconds kTryAgainPause{5};

}  // namespace

RedisSession::Node* RedisSession::node_of(RedisNodes::Pool pool, Deadline deadline, Miss& why) {
  for (Node& node : connected_) {
    if (node.pool == pool) return &node;
  }
  RedisPool::Lease connection = pool->take(deadline, why);
  if (!connection) return nullptr;
  connected_.push_back({std::move(pool), std::move(connection)});
  return &connected_.back();
}

std::optional<Miss> RedisSession::request(int slot, std::span<const std::string_view> words, Deadline deadline) {
  Miss why;
  RedisNodes::Pool pool = nodes_.node_of(slot, why);
  Node* const node = pool ? node_of(std::move(pool), deadline, why) : nullptr;
  if (node == nullptr) return why;
  node->connection->request(words);
  Request& request = pending_.emplace_back();
  request.node = node;
  request.slot = slot;
  if (!nodes_.is_cluster()) return std::nullopt;  // never repeated
  for (const std::string_view word : words) {
    if (word.size() > kCopiedBytes) request.long_at = request.words.size();
    request.words.emplace_back(word.size() > kCopiedBytes ? "" : word);
  }
  return std::nullopt;
}

void RedisSession::flush(Deadline deadline) {
  for (Node& node : connected_) node.connection->flush(deadline);
}

std::optional<Miss> RedisSession::receive(RedisReply& reply, Deadline deadline, size_t max_bytes,
                                          std::span<std::byte> into, const Supply& long_word) {
  CHECK(!pending_.empty());
  const Request request = std::move(pending_.front());
  pending_.pop_front();
  latest_ = request.node;
  RedisConnection& connection = *request.node->connection;
  if (!connection.receive(reply, deadline, max_bytes, into)) return connection.broken();
  if (!reply.is(RedisReply::Type::kError)) return std::nullopt;
  return repeat(request, reply, deadline, {max_bytes, into, long_word});
}

RedisSession::Advice RedisSession::advice(const RedisReply& reply, int slot, const RedisNodes::Pool& pool,
                                          Deadline deadline) {
  using What = Advice::What;
  const std::string_view text = reply.text;
  const Miss why{MissReason::kIo, text_of(reply)};
  if (text.starts_with("READONLY")) {  // a master has become a replica
    nodes_.reload(deadline);
    Miss none;
    const RedisNodes::Pool now = nodes_.node_of(slot, none);
    return {What::kAgain, now ? now : pool, why};
  }
  if (text.starts_with("MOVED ") || text.starts_with("ASK ")) return follow(reply, slot, pool, deadline);
  if (!nodes_.is_cluster()) return {};
  if (text.starts_with("CLUSTERDOWN")) {
    nodes_.suspect();
    return {What::kGiveUp, nullptr, why};
  }
  if (!text.starts_with("TRYAGAIN")) return {};
  std::this_thread::sleep_until(std::min(deadline, Clock::now() + kTryAgainPause));
  return {What::kAgain, pool, why};
}

RedisSession::Advice RedisSession::follow(const RedisReply& reply, int slot, const RedisNodes::Pool& pool,
                                          Deadline deadline) {
  using What = Advice::What;
  Advice advice{What::kGiveUp, nullptr, {MissReason::kIo, text_of(reply)}};
  if (!nodes_.is_cluster()) {
    advice.why.detail += " (a node of a cluster, which redis+cluster:// follows)";
    return advice;
  }
  const auto redirect = parse_redirect(reply.text, pool->node());
  if (!redirect || redirect->slot != slot) return advice;
  advice.pool = nodes_.follow(*redirect, deadline, advice.why);
  if (advice.pool) advice.what = redirect->ask ? What::kAskThere : What::kAgain;
  return advice;
}

std::optional<Miss> RedisSession::repeat(const Request& request, RedisReply& reply, Deadline deadline,
                                         const Target& target) {
  using What = Advice::What;
  RedisConnection* from = request.node->connection.get();
  RedisNodes::Pool pool = request.node->pool;
  RedisPool::Lease connection;  // of its own: other replies may be pending on the session's
  bool readonly = false;
  for (int n = 0; reply.is(RedisReply::Type::kError); ++n) {
    if (reply.text.starts_with("LOADING")) {  // asked again when it has loaded its data
      from->break_with({MissReason::kIo, text_of(reply)}, true);
      return from->broken();
    }
    if (reply.text.starts_with("READONLY")) {
      from->retire();
      pool->forget();  // a single server's name may stand for another one by now: the next request connects again
      if (!nodes_.is_cluster() || std::exchange(readonly, true)) return std::nullopt;
    }
    Advice next = advice(reply, request.slot, pool, deadline);
    if (next.what == What::kTake) return std::nullopt;
    if (next.what == What::kGiveUp) return std::move(next.why);
    if (n == kMaxRedirects) {
      return Miss{MissReason::kIo, "redirected more than " + std::to_string(n) + " times: " + text_of(reply)};
    }
    pool = std::move(next.pool);
    connection = pool->take(deadline, next.why);
    if (!connection) return std::move(next.why);
    from = connection.get();
    RedisReply asking;
    if (next.what == What::kAskThere) from->request({"ASKING"});
    std::vector<std::string_view> words(request.words.begin(), request.words.end());
    if (request.long_at < words.size()) words[request.long_at] = target.long_word();
    from->request(words);
    if (next.what == What::kAskThere && !from->receive(asking, deadline)) return from->broken();
    if (!from->receive(reply, deadline, target.max_bytes, target.into)) return from->broken();
  }
  return std::nullopt;
}

void RedisSession::reset() {
  pending_.clear();
  connected_.clear();
  latest_ = nullptr;
}

Miss RedisSession::blame(const RedisReply& reply) {
  const Miss why{MissReason::kIo, text_of(reply)};
  if (latest_ != nullptr) latest_->connection->break_with(why, true);
  return why;
}

}  // namespace vlcache
