// TierChain: the tiers of a process, nearest first, each with the threads that wait for it.
#pragma once

#include <cstdint>
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

// Where some records are: known at once of tiers on this machine, from others once they have answered. Asked by one
// thread; must not outlive its chain.
class TierSearch {
 public:
  TierSearch() = default;  // of nothing

  // Whether it is known by then where the i-th record is.
  bool wait(size_t i, Deadline until);
  // The first tier that has it, as far as is known; it may still turn out to be of no use. Null: none.
  ChainedTier* tier(size_t i);

 private:
  friend class TierChain;
  struct Asked {
    ChainedTier* tier;
    RecordAnswer answer;
    std::vector<size_t> records;  // ascending: those that no tier on this machine has in front of it
  };
  // Null: no tier has it, or `open` (if that is given) is the one to be waited for.
  ChainedTier* find(size_t i, Asked** open);
  std::vector<Asked> asked_;
};

class TierChain {
 public:
  // max_queued_bytes: of what waits to be stored, of all tiers, which have equal shares: one that is slow takes nothing
  // from the others.
  TierChain(std::vector<std::shared_ptr<KvTier>> tiers, int64_t max_queued_bytes);
  ~TierChain();  // what waits to be stored is, unless that takes longer than half a minute

  // Asks where these records are, and waits for nobody.
  TierSearch search(const std::vector<RecordKey>& keys, Deadline deadline);
  // The first that has a record, waiting for those that must be asked. Null: none.
  ChainedTier* find(const RecordKey& key, Deadline deadline);
  // Whether a tier of this machine has it.
  bool is_near(const RecordKey& key);
  // In all of them, soon; where the queue has no room, not.
  void save(const Record& record);
  // In those nearer than `from`, where it was found.
  void bring_nearer(const Record& record, const ChainedTier& from);
  // From all of them, soon.
  void erase(const RecordKey& key);
  // Waits until all that is to be stored is. False: not by the deadline.
  bool flush(Deadline deadline);
  void set_model(const ModelFingerprint& model);
  // Whoever computes says so here.
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
