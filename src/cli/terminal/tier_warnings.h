// TierWarnings prints each tier's first problem, once.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/kv_tier.h"

namespace vlcache {

// Watches the tiers of an engine. It must outlive the engine, which stores its last records when it is destroyed: the
// destructor reports problems of that time.
class TierWarnings {
 public:
  TierWarnings() = default;
  ~TierWarnings();
  TierWarnings(const TierWarnings&) = delete;
  TierWarnings& operator=(const TierWarnings&) = delete;

  void watch(std::vector<std::shared_ptr<KvTier>> tiers) { tiers_ = std::move(tiers); }
  // Prints a line to stderr for each tier that has failed and was not reported before.
  void tell();

 private:
  std::vector<std::shared_ptr<KvTier>> tiers_;
  std::set<std::string> told_;  // names of tiers
};

}  // namespace vlcache
