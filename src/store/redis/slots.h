// What a Redis cluster reports about itself: which node serves which hash slot, and where a key has moved to. A node is
// believed no further than these functions check.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "store/redis/address.h"
#include "store/redis/connection.h"

namespace vlcache {

inline constexpr int kRedisSlots = 16384;

// The slot of a key: CRC16 (XMODEM) of the part between its first { and the next }, if that is not empty, else of all.
int redis_slot(std::string_view key);

struct RedisSlotTable {
  std::vector<RedisNode> nodes;              // announced, no duplicates: masters and replicas
  std::array<int16_t, kRedisSlots> owner{};  // the index of the master of each slot; -1: none

  RedisSlotTable() { owner.fill(-1); }
  // The index of a node, which is added if it is new; -1: the table is full.
  int16_t index_of(const RedisNode& node);
  bool announces(const RedisNode& node) const;
  int n_without_node() const;
};

// The reply to CLUSTER SLOTS; `from` sent it, and stands for a host that is unknown to the node itself. nullopt: not
// such a table. Slots that no range names have no owner; where ranges overlap, the last one counts.
std::optional<RedisSlotTable> parse_slot_table(const RedisReply& reply, const RedisNode& from);

// The reply to CLUSTER NODES, which also lists masters without slots: nodes that work, by address and by host name.
std::vector<RedisNode> parse_cluster_nodes(std::string_view text, const RedisNode& from);

struct RedisRedirect {
  bool ask = false;  // for this request alone: the key is being moved
  int slot = 0;
  RedisNode node;
};
// An error reply "MOVED 3999 127.0.0.1:6381" or "ASK ..."; nullopt: another error. An empty host is that of `from`.
std::optional<RedisRedirect> parse_redirect(std::string_view error, const RedisNode& from);

}  // namespace vlcache
