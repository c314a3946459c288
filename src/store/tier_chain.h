// TierChain: the tiers of a process, nearest first, each with the thread that waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/store_worker.h"

namespace vlcache {

class TierChain {
 public:
  // max_queued_bytes: of what waits to be stored, per tier.
  TierChain(std::vector<std::shared_ptr<KvTier>> tiers, int64_t max_queued_bytes);
  ~TierChain();  // what waits to be stored is, unless that takes longer than half a minute

  struct Tier {
    std::shared_ptr<KvTier> tier;
    std::unique_ptr<StoreWorker> worker;
  };
  // The first that has a record, which may still turn out to be of no use. Null: none.
  Tier* find(const RecordKey& key, Deadline deadline);
  // In all of them, soon; where the queue has no room, not.
  void save(const Record& record);
  // Waits until all that is to be stored is. False: not by the deadline.
  bool flush(Deadline deadline);
  void set_model(const ModelFingerprint& model);

  struct State {
    std::string name;
    TierStats stats;
    StoreWorkerStats queue;
  };
  std::vector<State> stats() const;

 private:
  std::vector<Tier> tiers_;
};

}  // namespace vlcache
