// RedisSectionReader reads a record's sections from Redis, with requests ahead of replies.
#pragma once

#include <deque>
#include <optional>
#include <span>

#include "store/record.h"
#include "store/redis/keys.h"
#include "store/redis/session.h"

namespace vlcache {

class RedisSectionReader {
 public:
  RedisSectionReader(RedisNodes& nodes, const RecordSeal& seal, const RecordHeader& header, int64_t piece_bytes);

  // Sends as many requests as the limits allow; the rest follows as replies arrive.
  void expect(std::span<const int32_t> sections);
  // nullopt: all bytes of the section are in `to`, and verified.
  std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline);

 private:
  struct Part {
    int32_t section;
    bool first;  // of its section
    PieceRange range;
  };
  void plan(int32_t section);
  void request_ahead(Deadline deadline);
  std::optional<Miss> take(const Part& part, std::span<std::byte> to, Deadline deadline);

  const RecordSeal& seal_;
  const RecordHeader& header_;
  const RecordId id_;
  const int slot_;
  const int64_t piece_bytes_;
  std::vector<int64_t> offsets_;  // of each section in all sections' bytes
  std::deque<Part> parts_;        // not yet read, in order
  size_t n_requested_ = 0;        // of them
  int64_t bytes_requested_ = 0;   // of them
  RedisSession session_;          // connected while there are parts
  Miss no_connection_;            // why it is not
  std::optional<Miss> failed_;    // nothing is read after a failure
};

}  // namespace vlcache
