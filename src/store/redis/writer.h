// RedisRecordWriter writes a record's values to Redis, pieces before the header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/record.h"
#include "store/redis/session.h"

namespace vlcache {

class RedisRecordWriter {
 public:
  // The header expires first, so that a record ends at once, not piece by piece.
  static constexpr int64_t kPiecesLiveLongerMs = 60 * 1000;

  RedisRecordWriter(RedisSession& session, const RecordId& id, int64_t piece_bytes, Deadline deadline);

  // ttl_ms 0: no expiry. Returns the outcome of the writes; whether the record is already stored is the caller's check.
  // Values left by a failure expire after kUnfinishedMs, if the caller cannot remove them.
  PutResult write(const RecordSeal& seal, const Record& record, int64_t ttl_ms);

 private:
  bool send_pieces(const Record& record);
  bool finish(const std::vector<std::byte>& header, int64_t n_pieces, int64_t ttl_ms);
  bool request(std::initializer_list<std::string_view> words);
  // The reply to the oldest request; false: it is not of the expected type, and result_ has the reason.
  bool receive(RedisReply::Type wanted, RedisReply& reply, const RedisSession::Supply& long_word = {});

  RedisSession& session_;
  const RecordId& id_;
  int slot_;
  int64_t piece_bytes_;
  Deadline deadline_;
  PutResult result_;
};

// The outcome of a write that has failed for this reason.
PutResult failed_put(const Miss& why);

}  // namespace vlcache
