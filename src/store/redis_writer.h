// RedisRecordWriter writes a record's values to Redis, pieces before the header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/record.h"
#include "store/redis_connection.h"

namespace vlcache {

class RedisRecordWriter {
 public:
  RedisRecordWriter(RedisConnection& connection, const RecordId& id, int64_t piece_bytes, Deadline deadline)
      : connection_(connection), id_(id), piece_bytes_(piece_bytes), deadline_(deadline) {}

  // ttl_ms 0: no expiry. Returns the outcome of the writes; whether the record is already stored is the caller's check.
  // Values left by a failure expire after kUnfinishedMs, if the caller cannot remove them.
  PutResult write(const RecordSeal& seal, const Record& record, int64_t ttl_ms);

 private:
  bool send_pieces(const Record& record);
  bool finish(const std::vector<std::byte>& header, int64_t n_pieces, int64_t ttl_ms);
  // The reply to the oldest request; false: it is not of the expected type, and result_ has the reason.
  bool receive(RedisReply::Type wanted, RedisReply& reply);
  bool fail(const RedisReply& reply);

  RedisConnection& connection_;
  const RecordId& id_;
  int64_t piece_bytes_;
  Deadline deadline_;
  PutResult result_;
};

// The outcome that an error reply to a write means.
PutOutcome outcome_of(const RedisReply& error);

}  // namespace vlcache
