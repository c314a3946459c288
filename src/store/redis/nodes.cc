#include "store/redis/nodes.h"

#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "store/quiet_thread.h"

namespace vlcache {
namespace {

using Type = RedisReply::Type;

// A table in which every slot is a range of its own, with two replicas each.
constexpr size_t kMaxTableBytes = size_t{8} << 20;
// Between two loads, however often a reload is requested: the slots of a node move one by one.
constexpr double kMinPauseMs = 50;
// The longest pause while nodes are down or slots have none, so that a failover is noticed soon.
constexpr double kMaxPauseMs = 1000;

Deadline after_ms(Deadline start, double ms) {
  return start + std::chrono::microseconds(static_cast<int64_t>(ms * 1000));
}

std::vector<std::string> addresses_of(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> addresses;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      addresses.emplace_back(text);
    }
  }
  freeaddrinfo(found);
  return addresses;
}

struct Loaded {
  std::optional<RedisSlotTable> table;
  std::vector<RedisNode> others;
  Miss why;
};

// Asks one node for the cluster's table, and for the nodes without slots. A reply may take as long as any other,
// however long it might be: until then no other node is tried.
Loaded ask(const RedisNodes::Pool& pool, bool with_others, const RedisSettings& settings) {
  Loaded loaded;
  const RedisPool::Lease connection = pool->take(kNoDeadline, loaded.why);
  if (!connection) return loaded;
  RedisReply slots, nodes;
  const Deadline by = after_ms(Clock::now(), settings.times.reply_ms);
  connection->request({"CLUSTER", "SLOTS"});
  if (with_others) connection->request({"CLUSTER", "NODES"});
  if (!connection->receive(slots, by, kMaxTableBytes) ||
      (with_others && !connection->receive(nodes, by, kMaxTableBytes))) {
    loaded.why = *connection->broken();
    connection->break_with(loaded.why, true);
    return loaded;
  }
  loaded.table = parse_slot_table(slots, pool->node());
  if (nodes.is(Type::kString)) loaded.others = parse_cluster_nodes(nodes.text, pool->node());
  if (loaded.table && loaded.table->nodes.empty()) {
    loaded.table.reset();
    loaded.why = {MissReason::kIo, "the cluster has no slots"};
  } else if (!loaded.table) {
    loaded.why = {MissReason::kIo, "CLUSTER SLOTS: " + (slots.is(Type::kArray) ? "not a table of slots"
                                                                               : text_of(slots, settings.password))};
  }
  return loaded;
}

RedisSettings settings_of(const RedisAddress& address, const RedisTimes& times, const RedisTlsFiles& files) {
  RedisSettings settings{address.user, address.password, address.db, times, nullptr};
  if (address.tls) settings.tls = std::make_unique<const RedisTls>(files);
  return settings;
}

}  // namespace

RedisNodes::RedisNodes(const RedisAddress& address, const RedisTimes& times, const RedisTlsFiles& tls,
                       std::vector<std::string> allowed)
    : address_(address),
      settings_(settings_of(address, times, tls)),
      allowed_(std::move(allowed)),
      pause_ms_(times.retry_ms) {
  for (const RedisNode& seed : address_.seeds) allowed_.push_back(seed.host);
  Lock lock(mutex_);
  if (is_cluster()) {
    load(lock);
  } else {
    const Pool server = pool_of(address_.seeds.front());
    lock.unlock();
    Miss why;
    server->take(kNoDeadline, why);
  }
  thread_ = start_quiet_thread([this] { run(); });
}

RedisNodes::~RedisNodes() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  loaded_.notify_all();
  thread_.join();
}

bool RedisNodes::allows(const std::string& host) const {
  return host_matches(allowed_, host) || seed_ips_.contains(host);
}

Miss RedisNodes::foreign(const RedisNode& node) const {
  return {MissReason::kIo, "the cluster names " + printable(node.shown()) + ", whose host is none of --cache-redis; " +
                               "--cache-redis-allow " + printable(node.host) + " would follow it"};
}

std::string RedisNodes::printable(const std::string& host) const {
  const std::string& secret = settings_.password;
  return !secret.empty() && host.find(secret) != std::string::npos ? "(a host that repeats the password)" : host;
}

RedisNodes::Pool RedisNodes::pool_of(const RedisNode& node) {
  Pool& pool = pools_[node];
  if (!pool) {
    pool = std::make_shared<RedisPool>(node, settings_, [this] {
      const std::lock_guard lock(mutex_);
      if (is_cluster()) schedule(after_ms(Clock::now(), kMinPauseMs));
      changed_.notify_all();
    });
  }
  return pool;
}

RedisNodes::Pool RedisNodes::node_of(int slot, Miss& why) {
  const std::lock_guard lock(mutex_);
  if (!is_cluster()) return pool_of(address_.seeds.front());
  const int16_t owner = table_.owner[static_cast<size_t>(slot)];
  if (owner < 0) {
    why = table_.nodes.empty() ? problem_
                               : Miss{MissReason::kIo, "no node of the cluster serves slot " + std::to_string(slot)};
    return nullptr;
  }
  const RedisNode& node = table_.nodes[static_cast<size_t>(owner)];
  if (allows(node.host)) return pool_of(node);
  why = foreign(node);
  return nullptr;
}

std::vector<RedisNodes::Pool> RedisNodes::masters(std::optional<Miss>& why) {
  const std::lock_guard lock(mutex_);
  if (!is_cluster()) return {pool_of(address_.seeds.front())};
  std::vector<Pool> pools;
  for (const int16_t owner : std::set<int16_t>(table_.owner.begin(), table_.owner.end())) {
    if (owner < 0) continue;
    const RedisNode& node = table_.nodes[static_cast<size_t>(owner)];
    if (allows(node.host)) {
      pools.push_back(pool_of(node));
    } else {
      why = foreign(node);
    }
  }
  if (table_.nodes.empty()) {
    why = problem_;
  } else if (const int n = table_.n_without_node(); n > 0) {
    why = Miss{MissReason::kIo, "no node of the cluster serves " + std::to_string(n) + " of its slots"};
  }
  return pools;
}

RedisNodes::Pool RedisNodes::follow(const RedisRedirect& redirect, Deadline deadline, Miss& why) {
  Lock lock(mutex_);
  const RedisNode& node = redirect.node;
  const auto announced = [&] { return table_.announces(node) || std::ranges::find(others_, node) != others_.end(); };
  if (!allows(node.host) || !announced()) {
    wants_others_ = true;
    wait_for_reload(lock, deadline);
  }
  if (!allows(node.host)) {
    why = foreign(node);
    return nullptr;
  }
  if (!announced()) {
    why = {MissReason::kIo, "redirected to " + printable(node.shown()) + ", which the cluster does not announce"};
    return nullptr;
  }
  if (!redirect.ask) {
    const int16_t owner = table_.index_of(node);
    if (owner >= 0) table_.owner[static_cast<size_t>(redirect.slot)] = owner;
    schedule(Clock::now());  // other slots may have moved with it
  }
  return pool_of(node);
}

void RedisNodes::reload(Deadline deadline) {
  Lock lock(mutex_);
  wait_for_reload(lock, deadline);
}

void RedisNodes::suspect() {
  const std::lock_guard lock(mutex_);
  schedule(Clock::now());
}

void RedisNodes::schedule(Deadline at) {
  at = std::max(at, after_ms(last_load_, kMinPauseMs));
  if (at >= load_at_) return;
  load_at_ = at;
  changed_.notify_all();
}

void RedisNodes::wait_for_reload(Lock& lock, Deadline deadline) {
  if (!is_cluster()) return;
  const int64_t wanted = n_started_ + 1;
  load_at_ = Clock::now();  // at once: a request waits
  changed_.notify_all();
  const Deadline by = std::min(deadline, after_ms(Clock::now(), settings_.times.reply_ms));
  loaded_.wait_until(lock, by, [&] { return stopping_ || n_loaded_ >= wanted; });
}

// Nodes that may have the table: working nodes, beginning with another one each time, then the seeds.
std::vector<RedisNodes::Pool> RedisNodes::sources() {
  std::vector<Pool> sources;
  for (const auto& [node, pool] : pools_) {
    if (!pool->down()) sources.push_back(pool);
  }
  if (!sources.empty()) std::rotate(sources.begin(), sources.begin() + n_started_ % std::ssize(sources), sources.end());
  for (const RedisNode& seed : address_.seeds) {
    const Pool pool = pool_of(seed);
    if (std::ranges::find(sources, pool) == sources.end()) sources.push_back(pool);
  }
  return sources;
}

// Seeds may be names where the cluster announces addresses.
void RedisNodes::resolve_seeds(Lock& lock, const std::vector<RedisNode>& announced) {
  const auto unknown = [&](const RedisNode& node) { return is_ip_address(node.host) && !allows(node.host); };
  if (std::ranges::none_of(announced, unknown)) return;
  lock.unlock();
  std::set<std::string> ips;
  for (const RedisNode& seed : address_.seeds) {
    if (!is_ip_address(seed.host)) std::ranges::copy(addresses_of(seed.host), std::inserter(ips, ips.end()));
  }
  lock.lock();
  seed_ips_ = std::move(ips);
}

void RedisNodes::install(RedisSlotTable table, std::vector<RedisNode> others) {
  table_ = std::move(table);
  if (!others.empty()) others_ = std::move(others);
  const auto known = [&](const RedisNode& node) {
    const auto& seeds = address_.seeds;
    return table_.announces(node) || std::ranges::find(others_, node) != others_.end() ||
           std::ranges::find(seeds, node) != seeds.end();
  };
  std::erase_if(pools_, [&](const auto& entry) { return !known(entry.first); });
}

void RedisNodes::load(Lock& lock) {
  const int64_t ticket = ++n_started_;
  const bool with_others = std::exchange(wants_others_, false);
  load_at_ = kNoDeadline;
  Loaded loaded;
  for (const Pool& pool : sources()) {
    lock.unlock();
    try {
      loaded = ask(pool, with_others, settings_);
    } catch (const std::exception& error) {  // memory, at most
      loaded.why = {MissReason::kIo, error.what()};
    }
    lock.lock();
    if (loaded.table || stopping_) break;
  }
  if (loaded.table) {
    resolve_seeds(lock, loaded.table->nodes);
    resolve_seeds(lock, loaded.others);
    install(std::move(*loaded.table), std::move(loaded.others));
  } else {
    problem_ = std::move(loaded.why);
  }
  last_load_ = Clock::now();
  n_loaded_ = ticket;
  loaded_.notify_all();
  const bool some_down = std::ranges::any_of(pools_, [](const auto& entry) { return entry.second->down(); });
  const bool some_foreign = std::ranges::any_of(table_.nodes, [&](const auto& node) { return !allows(node.host); });
  const bool healthy = loaded.table && !some_down && !some_foreign && table_.n_without_node() == 0;
  if (!healthy) schedule(after_ms(last_load_, pause_ms_));
  pause_ms_ =
      healthy ? settings_.times.retry_ms : std::min(2 * pause_ms_, std::max(settings_.times.retry_ms, kMaxPauseMs));
}

void RedisNodes::run() {
  Lock lock(mutex_);
  while (!stopping_) {
    const Deadline now = Clock::now();
    if (load_at_ <= now) {
      load(lock);
      continue;
    }
    Pool due;
    Deadline next = std::min(load_at_, now + std::chrono::hours(1));
    for (const auto& [node, pool] : pools_) {
      const Deadline at = pool->retry_at();
      if (at <= now) due = pool;
      next = std::min(next, at);
    }
    if (due) {
      lock.unlock();
      due->try_again();
      lock.lock();
    } else {
      changed_.wait_until(lock, next);
    }
  }
}

}  // namespace vlcache
