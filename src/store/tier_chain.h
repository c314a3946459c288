// TierChain: the tiers of a process, nearest first, each with its worker threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/save_pace.h"
#include "store/store_worker.h"

namespace vlcache {

struct ChainedTier {
  std::shared_ptr<KvTier> tier;
  std::unique_ptr<StoreWorker> worker;
};

// Which tiers have the requested records: known at once for tiers on this machine, for others once they have answered.
// Used by one thread; must not outlive its chain.
class TierSearch {
 public:
  TierSearch() = default;  // of nothing

  // Whether the tier of the i-th record is known by then.
  bool wait(size_t i, Deadline until);
  // The first tier that has it, as far as is known; the record may still turn out to be unusable. Null: none.
  ChainedTier* tier(size_t i);

 private:
  friend class TierChain;
  struct Asked {
    ChainedTier* tier;
    RecordAnswer answer;
    std::vector<size_t> records;  // ascending: records that no nearer tier on this machine has
  };
  // Null: no tier has it, or, if `open` is given, *open is the tier whose answer is pending.
  ChainedTier* find(size_t i, Asked** open);
  std::vector<Asked> asked_;
};

class TierChain {
 public:
  // max_queued_bytes: the bound of all queued saves, shared equally by the tiers: a slow one uses no room of the
  // others.
  TierChain(std::vector<std::shared_ptr<KvTier>> tiers, int64_t max_queued_bytes);
  ~TierChain();  // finishes queued saves, but waits no longer than half a minute

  // Asks where these records are, without waiting.
  TierSearch search(const std::vector<RecordKey>& keys, Deadline deadline);
  // The first tier that has a record; waits for the answers of remote tiers that come before it. Null: none.
  ChainedTier* find(const RecordKey& key, Deadline deadline);
  // The record's id, which is the same in all tiers; without a tier: zeros.
  RecordId id_of(const RecordKey& key) const;
  // Whether a tier of this machine has it.
  bool is_near(const RecordKey& key);
  // Queues saves to all tiers; a tier whose queue is full is skipped.
  void save(const Record& record);
  // Whether the queue of a tier accepts this many bytes now.
  bool takes(int64_t bytes);
  // Whether no tier's queue holds more than this.
  bool queues_at_most(int64_t bytes) const;
  // Queues that a record was used, in all tiers.
  void used(const RecordKey& key);
  // Queues saves to the tiers nearer than `from`, where the record was found.
  void bring_nearer(const Record& record, const ChainedTier& from);
  // Queues erasures in all tiers: of a record, or of the records that `job` finds.
  void erase(const RecordKey& key);
  void erase(const std::function<void(KvTier& tier)>& job);
  // Claims a record in the tier that most processes share, the last one: KvTier::claim(), without waiting.
  RecordAnswer claim(const RecordKey& key, Clock::duration time, Deadline deadline);
  // Ends the claim, after the saves that are queued.
  void release(const RecordKey& key);
  // Queues a probe of the tiers that do not work, which finds out whether they do again.
  void probe_failed();
  // Waits for all queued saves. False: timeout.
  bool flush(Deadline deadline);
  void set_model(const ModelFingerprint& model);
  // Threads that compute mark it here.
  SavePace& pace() { return pace_; }

  struct State {
    std::string name;
    TierStats stats;
    StoreWorkerStats queue;
  };
  std::vector<State> stats() const;

 private:
  SavePace pace_;  // outlives the workers
  std::vector<ChainedTier> tiers_;
};

}  // namespace vlcache
