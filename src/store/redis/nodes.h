// RedisNodes knows the servers of an address: one, or the masters of a cluster, with the table of the slots that each
// serves. One thread tries failed servers again and reloads the table. Connections, and with them the password, are
// given only to nodes that the cluster announces, on hosts that the caller has named.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "store/redis/pool.h"
#include "store/redis/slots.h"

namespace vlcache {

class RedisNodes {
 public:
  using Pool = std::shared_ptr<RedisPool>;

  // Asks the server, or the seeds until one has the table; an unreachable one is no error. allowed: patterns of hosts
  // that are followed beside the seeds' own (parse_host_patterns). Throws Error(kInput) if a file of TLS is unusable.
  RedisNodes(const RedisAddress& address, const RedisTimes& times, const RedisTlsFiles& tls,
             std::vector<std::string> allowed);
  ~RedisNodes();
  RedisNodes(const RedisNodes&) = delete;
  RedisNodes& operator=(const RedisNodes&) = delete;

  bool is_cluster() const { return address_.cluster; }
  const std::string& password() const { return settings_.password; }
  // The node that serves a slot. Null: `why` has the reason. Costs no time.
  Pool node_of(int slot, Miss& why);
  // Every node that serves slots; `why` is set if slots without a known node remain.
  std::vector<Pool> masters(std::optional<Miss>& why);
  // The node that a redirect names. A node that is not known yet may be new: waits for the table, a reply's time at
  // most. Null: `why` has the reason.
  Pool follow(const RedisRedirect& redirect, Deadline deadline, Miss& why);
  // Reloads the table, and waits for it, a reply's time at most.
  void reload(Deadline deadline);
  // Reloads the table soon: a node has said that it cannot serve a slot.
  void suspect();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // With the mutex held:
  bool allows(const std::string& host) const;
  Miss foreign(const RedisNode& node) const;
  std::string printable(const std::string& host) const;
  Pool pool_of(const RedisNode& node);
  std::vector<Pool> sources();
  void install(RedisSlotTable table, std::vector<RedisNode> others);
  void schedule(Deadline at);
  void wait_for_reload(Lock& lock, Deadline deadline);
  // These release the mutex while they wait for servers.
  void load(Lock& lock);
  void resolve_seeds(Lock& lock, const std::vector<RedisNode>& announced);
  void run();

  const RedisAddress address_;
  const RedisSettings settings_;
  std::vector<std::string> allowed_;  // patterns
  std::set<std::string> seed_ips_;    // of the seeds' names
  std::mutex mutex_;
  std::condition_variable changed_, loaded_;
  std::map<RedisNode, Pool> pools_;
  RedisSlotTable table_;
  std::vector<RedisNode> others_;  // announced without slots
  Miss problem_;                   // why there is no table
  Deadline load_at_ = kNoDeadline, last_load_ = {};
  double pause_ms_;  // before the next load while something is wrong
  int64_t n_started_ = 0, n_loaded_ = 0;
  bool wants_others_ = false, stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace vlcache
