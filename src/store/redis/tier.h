// RedisTier stores records in a Redis server or cluster, for any number of machines: vlcache:{<hex id>}:h holds a
// record's header, vlcache:{<hex id>}:0, :1, ... its sections, concatenated and cut every kPieceBytes. Every request
// names one value, so that a record can be used while its slot moves to another node. The header is written last, so a
// partly written record is absent; everything is verified whenever it is read, and corrupt records are removed, so that
// they will be written again. Room is made by the server (`maxmemory`). Without a salt anyone with write access to the
// server can change answers.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "store/kv_tier.h"
#include "store/record_seal.h"
#include "store/redis/address.h"
#include "store/redis/session.h"
#include "store/tier_counter.h"

namespace vlcache {

struct RedisTierOptions {
  RedisAddress address;
  RedisTlsFiles tls;                 // for an address with TLS
  std::vector<std::string> allowed;  // RedisNodes: hosts of a cluster beside the seeds'
  int64_t ttl_ms = 0;                // the server removes a record after this time; 0: never
  std::string salt;                  // RecordSeal
  int id_bits = 256;                 // RecordSeal; fewer in tests
  RedisTimes times;
};

class RedisTier final : public KvTier {
 public:
  // Small enough that the server, which handles one command at a time, does not block its other clients for more than a
  // millisecond or two; large enough that the cost of requests is small beside the bytes. Part of the format: readers
  // must cut as writers did.
  static constexpr int64_t kPieceBytes = int64_t{2} << 20;

  // An unreachable server is no error: every record is a miss, and the server is tried again, less and less often.
  // Throws Error(kInput) if a file of TLS is unusable.
  explicit RedisTier(const RedisTierOptions& options);

  std::string_view name() const override { return "redis"; }
  std::string place() const override { return place_; }
  RecordId id_of(const RecordKey& key) const override { return seal_.id(key); }
  std::vector<bool> exists(std::span<const RecordKey> keys, Deadline deadline) override;
  OpenedRecord open(const RecordKey& key, Deadline deadline) override;
  PutResult put(const Record& record, Deadline deadline) override;
  // The key vlcache:{<id>}:c, which expires.
  bool claim(const RecordKey& key, Clock::duration time, Deadline deadline) override;
  void release(const RecordKey& key) override;
  bool erase(const RecordId& id) override { return erase(id, kNoDeadline); }
  // Ends the limited time of a record that was stored at its first use.
  void used(const RecordKey& key) override;
  // The key vlcache:{probe-...}:p, which expires.
  void probe() override;
  std::vector<ListedRecord> list() override;
  TierStats stats() const override { return counter_.stats(); }

 private:
  class Reader;
  // nullopt: `header` is verified and of this key.
  std::optional<Miss> take_header(const RedisReply& reply, const RecordKey* expected, RecordHeader& header) const;
  std::optional<Miss> read_header(const RecordKey& key, Deadline deadline, RecordHeader& header);
  PutResult store(const Record& record, Deadline deadline);
  // Whether the record's server has room for it without evicting others; the reason if not.
  std::string no_room(RedisSession& session, const Record& record, Deadline deadline);
  // Counts the pieces of a record on the server, and reads its header.
  std::optional<Miss> look(RedisSession& session, const Record& record, Deadline deadline, RedisReply& header,
                           int64_t& n_pieces);
  // Removes a record that no client can use.
  void drop(const RecordId& id, Deadline deadline);
  bool erase(const RecordId& id, Deadline deadline);
  std::vector<RecordId> find_ids();
  std::optional<Miss> scan(RedisPool& pool, std::set<RecordId>& ids) const;
  std::optional<Miss> list_one(const RecordId& id, ListedRecord& listed);
  std::string text_of(const RedisReply& error) const { return vlcache::text_of(error, nodes_.password()); }
  Miss unexpected(const RedisReply& reply) const;

  const std::string place_;
  int64_t ttl_ms_;
  RecordSeal seal_;
  const std::string claimant_ = new_claimant();
  TierCounter counter_;
  RedisNodes nodes_;
};

}  // namespace vlcache
