// What went wrong beyond the process, told once.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/kv_tier.h"

namespace vlcache {

// Of the tiers of an engine. It outlives the engine, whose last records are stored when it ends: what goes wrong then
// is told by the destructor.
class TierWarnings {
 public:
  TierWarnings() = default;
  ~TierWarnings();
  TierWarnings(const TierWarnings&) = delete;
  TierWarnings& operator=(const TierWarnings&) = delete;

  void watch(std::vector<std::shared_ptr<KvTier>> tiers) { tiers_ = std::move(tiers); }
  // A line on stderr for each tier that has failed and was not named before.
  void tell();

 private:
  std::vector<std::shared_ptr<KvTier>> tiers_;
  std::set<std::string> told_;  // names of tiers
};

}  // namespace vlcache
