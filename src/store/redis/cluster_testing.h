// For tests: RedisCluster, masters and replicas of a real cluster, which the test starts and ends.
#pragma once

#include <algorithm>
#include <map>

#include "store/redis/server_testing.h"
#include "store/redis/slots.h"

namespace vlcache {

class RedisCluster {
 public:
  static constexpr int kMasters = 3;

  enum class Fourth : uint8_t { kReplica, kSpare };
  // Masters, and a fourth node: a replica of the first one, or a master without slots. Not running() where the binary
  // is missing.
  explicit RedisCluster(const std::filesystem::path& dir, Fourth fourth)
      : dir_(dir / ("cluster-" + std::to_string(getpid()))) {
    for (int i = 0; i <= kMasters; ++i) add(dir_ / std::to_string(i));
    if (!running()) return;
    for (int i = 0; i < kMasters; ++i) {
      ask(i, {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first_slot(i)), std::to_string(first_slot(i + 1) - 1)});
      ask(i, {"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    }
    for (int i = 1; i < n(); ++i) meet(i);
    wait([&](int i) { return info(i, "cluster_state:ok") && info(i, "cluster_known_nodes:" + std::to_string(n())); });
    if (fourth == Fourth::kSpare) return;
    ask(kMasters, {"CLUSTER", "REPLICATE", id(0)});
    wait([&](int i) {
      return i < kMasters || text(i, {"INFO", "replication"}).find("link_status:up") != std::string::npos;
    });
  }

  ~RedisCluster() {
    servers_.clear();
    std::filesystem::remove_all(dir_);
  }
  RedisCluster(const RedisCluster&) = delete;
  RedisCluster& operator=(const RedisCluster&) = delete;

  bool running() const {
    return std::ranges::all_of(servers_, [](const auto& server) { return server->running(); });
  }
  int n() const { return static_cast<int>(servers_.size()); }
  RedisServer& server(int i) { return *servers_[static_cast<size_t>(i)]; }
  RedisReply ask(int i, std::initializer_list<std::string_view> words) { return server(i).ask(words); }
  std::string text(int i, std::initializer_list<std::string_view> words) { return ask(i, words).text; }
  std::string id(int i) { return text(i, {"CLUSTER", "MYID"}); }
  bool info(int i, const std::string& line) {
    return text(i, {"CLUSTER", "INFO"}).find(line + "\r") != std::string::npos;
  }
  static int first_slot(int master) { return kRedisSlots * master / kMasters; }
  int master_of(int slot) const {
    if (moved_.contains(slot)) return moved_.at(slot);
    int i = kMasters - 1;
    while (slot < first_slot(i)) --i;
    return i;
  }
  RedisNode node(int i) { return {"127.0.0.1", server(i).port()}; }

  // Moves a slot and its keys, as `redis-cli --cluster reshard` does; `between` is called after each step. Moves in
  // quick succession must be to one node: nodes that claim slots without knowing of each other's claims steal them from
  // each other.
  void move(
      int slot, int from, int to, const std::function<void()>& between = [] {}) {
    const std::string number = std::to_string(slot), port = std::to_string(server(to).port());
    const auto must = [&](int i, std::initializer_list<std::string_view> words) {
      const RedisReply reply = ask(i, words);
      EXPECT_FALSE(reply.is(RedisReply::Type::kError)) << reply.text;
    };
    must(to, {"CLUSTER", "SETSLOT", number, "IMPORTING", id(from)});
    must(from, {"CLUSTER", "SETSLOT", number, "MIGRATING", id(to)});
    between();
    while (true) {
      const RedisReply keys = ask(from, {"CLUSTER", "GETKEYSINSLOT", number, "1"});
      if (keys.elements.empty()) break;
      must(from, {"MIGRATE", "127.0.0.1", port, keys.elements[0].text, "0", "5000"});
      between();
    }
    moved_[slot] = to;
    for (const int i : {to, from}) must(i, {"CLUSTER", "SETSLOT", number, "NODE", id(to)});
    between();
  }
  // Waits, at most ten seconds, until this is true of every running node.
  void wait(const std::function<bool(int)>& done) {
    for (int i = 0; i < n(); ++i) {
      int left = 1000;
      while (server(i).running() && !done(i) && --left > 0) usleep(10'000);
      ASSERT_GT(left, 0) << "node " << i << ": " << text(i, {"CLUSTER", "INFO"});
    }
  }

 private:
  void add(const std::filesystem::path& dir) {
    bus_ports_.push_back(free_port());
    servers_.push_back(std::make_unique<RedisServer>(
        dir, std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port",
                                      std::to_string(bus_ports_.back()), "--repl-diskless-sync-delay", "0"}));
  }
  void meet(int i) {
    ask(0, {"CLUSTER", "MEET", "127.0.0.1", std::to_string(server(i).port()),
            std::to_string(bus_ports_[static_cast<size_t>(i)])});
  }

  const std::filesystem::path dir_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::vector<int> bus_ports_;
  std::map<int, int> moved_;  // slots, to nodes
};

}  // namespace vlcache
