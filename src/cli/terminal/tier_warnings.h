// TierWarnings prints a line when a tier stops working, and one when it works again; and each tier's first record that
// is not used or stored for what it is.
#pragma once

#include <map>
#include <memory>
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

  // Probes the tiers, and prints which do not work.
  void watch(std::vector<std::shared_ptr<KvTier>> tiers);
  // Prints the changes since then to stderr.
  void tell();

 private:
  struct Told {
    bool failed = false, bad_record = false, large_record = false;
    int n_changes = 0;  // printed
    Clock::time_point changed{};
  };
  void tell_change(const KvTier& tier, const TierStats& stats, Told& told) const;

  std::vector<std::shared_ptr<KvTier>> tiers_;
  std::map<const KvTier*, Told> told_;
};

}  // namespace vlcache
