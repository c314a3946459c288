// KvTier is the interface of a store that keeps records beyond this process: a directory, a Redis server. It only moves
// and verifies bytes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "store/miss.h"
#include "store/record.h"

namespace vlcache {

using Deadline = Clock::time_point;
inline constexpr Deadline kNoDeadline = Deadline::max();

// A record whose header is verified. Used by one thread at a time; must not outlive its tier.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  virtual const RecordHeader& header() const = 0;
  // The caller will read these sections next, in this order: a tier with a high latency starts fetching (one pipelined
  // request). Does not block.
  virtual void expect(std::span<const int32_t> sections) { static_cast<void>(sections); }
  // Reads a section into `to`, whose size is the section's, and verifies it. nullopt: every byte is right. Else the
  // contents of `to` are undefined, and later sections of this record are likely to fail, too.
  virtual std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline) = 0;
};

struct OpenedRecord {
  std::unique_ptr<RecordReader> reader;  // null: `miss` has the reason
  Miss miss;
};

enum class PutOutcome : uint8_t {
  kStored,
  kPresent,   // already stored; counts as used
  kTooLarge,  // for the tier's limit, or the process's
  kNoSpace,   // the medium is full, or a quota is reached
  kLate,
  kIo,
  kOutranked,  // the records to evict for it were used again or save more, or the tier cannot tell
};
inline constexpr size_t kPutOutcomes = static_cast<size_t>(PutOutcome::kOutranked) + 1;
std::string_view put_outcome_name(PutOutcome outcome);

struct PutResult {
  PutOutcome outcome = PutOutcome::kStored;
  std::string detail;
  bool there() const { return outcome == PutOutcome::kStored || outcome == PutOutcome::kPresent; }
};

// A record as `vlcache cache ls` shows it.
struct ListedRecord {
  RecordId id{};
  RecordKey key;  // meaningless if there is a problem
  int64_t bytes = 0;
  int64_t created_ms = 0, used_ms = 0;  // since 1970
  std::optional<Miss> problem;          // found in the header; sections are not read
  double saves_ms = 0;                  // RecordHeader
  int64_t n_uses = -1;                  // since it was stored; -1: the tier does not count them
};

struct TierStats {
  int64_t n_hits = 0;                            // records opened
  std::array<int64_t, kMissReasons> n_missed{};  // records not opened, and sections not read, by MissReason
  std::array<int64_t, kPutOutcomes> n_put{};     // by PutOutcome
  int64_t n_evictions = 0;                       // to keep the limit
  int64_t n_removed = 0;                         // found corrupt or expired
  int64_t bytes_read = 0, bytes_written = 0;
  double read_ms = 0, write_ms = 0;  // spent opening and reading; storing
  std::string last_problem;          // of the latest failure; empty: none
  // Why the tier itself cannot be read or written, by the latest attempt; empty: it can, as far as is known.
  std::string cannot_read, cannot_write;
  Clock::time_point failed_at{};         // the latest such failure
  std::string bad_record, large_record;  // the latest record that is not used, or not stored, for what it is

  int64_t n_misses() const;
  int64_t n_failed() const;         // misses other than absent, expired and cancelled
  int64_t n_failed_writes() const;  // records not stored, by no choice of this process
  bool works() const { return cannot_read.empty() && cannot_write.empty(); }
};
// Whether a miss of this reason is a failure; whether this outcome of a write is one.
bool is_failure(MissReason reason);
bool is_failure(PutOutcome outcome);

// Nothing here throws; every failure is a reason. May be used by several threads.
class KvTier {
 public:
  virtual ~KvTier() = default;
  virtual std::string_view name() const = 0;        // "disk", "redis": the name in JSON
  virtual std::string place() const { return ""; }  // the folder or address, without secrets
  virtual RecordId id_of(const RecordKey& key) const = 0;

  // Whether exists() needs this machine alone: then threads that compute may call it.
  virtual bool answers_at_once() const { return false; }
  // In one round trip. A record that exists may still turn out to be unusable; `false` may also mean an unreachable
  // tier.
  virtual std::vector<bool> exists(std::span<const RecordKey> keys, Deadline deadline) = 0;
  // Opening counts as use.
  virtual OpenedRecord open(const RecordKey& key, Deadline deadline) = 0;
  // The views must stay unchanged until this returns. A record of this key that is already stored is left as it is.
  virtual PutResult put(const Record& record, Deadline deadline) = 0;
  // Whether the record existed and is now removed. Also removes records that this process cannot open.
  virtual bool erase(const RecordId& id) = 0;
  // Claims a record that does not exist for the process that will compute and store it: for `time` at most. False:
  // another process has claimed it. A tier that keeps no claims or cannot be reached grants them.
  virtual bool claim(const RecordKey& key, Clock::duration time, Deadline deadline) {
    static_cast<void>(key), static_cast<void>(time), static_cast<void>(deadline);
    return true;
  }
  // Ends a claim of this process.
  virtual void release(const RecordKey& key) { static_cast<void>(key); }
  // A record was used in memory: counts as opening it. May block.
  virtual void used(const RecordKey& key) { static_cast<void>(key); }
  // Writes, reads and removes a few bytes that are no record: stats() has why that is impossible. May block.
  virtual void probe() {}
  virtual std::vector<ListedRecord> list() = 0;
  virtual TierStats stats() const = 0;

  // Marks records of this model as in use: records of models that were never passed here are evicted first. No effect
  // in a tier that does not evict by itself.
  virtual void set_model(const ModelFingerprint& model) { static_cast<void>(model); }
};

// A name of its own for each tier object in the world, by which it knows its claims.
std::string new_claimant();

// Opens a record and reads all of it, 0 or more sections. nullopt: every byte is right.
std::optional<Miss> verify_record(KvTier& tier, const RecordKey& key);

}  // namespace vlcache
