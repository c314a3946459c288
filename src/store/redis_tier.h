// RedisTier stores records in a Redis server, for any number of machines: vlcache:<hex id>:h holds a record's header,
// vlcache:<hex id>:0, :1, ... its sections, concatenated and cut every kPieceBytes. The header is written last, so a
// partly written record is absent; everything is verified whenever it is read, and corrupt records are removed, so that
// they will be written again. Room is made by the server (`maxmemory`). Without a salt anyone with write access to the
// server can change answers.
#pragma once

#include <cstdint>
#include <string>

#include "store/kv_tier.h"
#include "store/record_seal.h"
#include "store/redis_address.h"
#include "store/redis_pool.h"
#include "store/tier_counter.h"

namespace vlcache {

struct RedisTierOptions {
  RedisAddress address;
  int64_t ttl_ms = 0;  // the server removes a record after this time; 0: never
  std::string salt;    // RecordSeal
  int id_bits = 256;   // RecordSeal; fewer in tests
  RedisTimes times;
};

class RedisTier final : public KvTier {
 public:
  // Small enough that the server, which handles one command at a time, does not block its other clients for more than a
  // millisecond or two; large enough that the cost of requests is small beside the bytes. Part of the format: readers
  // must cut as writers did.
  static constexpr int64_t kPieceBytes = int64_t{2} << 20;

  // An unreachable server is no error: every record is a miss, and the server is tried again, less and less often.
  explicit RedisTier(const RedisTierOptions& options);

  std::string_view name() const override { return "redis"; }
  RecordId id_of(const RecordKey& key) const override { return seal_.id(key); }
  std::vector<bool> exists(std::span<const RecordKey> keys, Deadline deadline) override;
  OpenedRecord open(const RecordKey& key, Deadline deadline) override;
  PutResult put(const Record& record, Deadline deadline) override;
  bool erase(const RecordId& id) override;
  std::vector<ListedRecord> list() override;
  TierStats stats() const override { return counter_.stats(); }

 private:
  class Reader;
  // nullopt: `header` is verified and of this key.
  std::optional<Miss> take_header(const RedisConnection& connection, const RedisReply& reply, const RecordKey* expected,
                                  RecordHeader& header) const;
  std::optional<Miss> read_header(const RecordKey& key, Deadline deadline, RecordHeader& header);
  PutResult store(const Record& record, Deadline deadline);
  // Removes a record that no client can use.
  void drop(const RecordId& id);
  bool erase(RedisConnection& connection, const RecordId& id);
  std::vector<RecordId> find_ids(RedisConnection& connection);
  std::optional<Miss> list_one(RedisConnection& connection, const RecordId& id, ListedRecord& listed);

  int64_t ttl_ms_;
  RecordSeal seal_;
  TierCounter counter_;
  RedisPool pool_;
};

}  // namespace vlcache
