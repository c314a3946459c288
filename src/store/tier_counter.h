// TierCounter keeps the counters of a tier: one call per event, from any thread.
#pragma once

#include <mutex>
#include <optional>

#include "store/kv_tier.h"

namespace vlcache {

class TierCounter {
 public:
  TierStats stats() const;
  // A record was opened, or was missed for this reason.
  void opened(Clock::time_point start, const std::optional<Miss>& why);
  // A section of this many bytes was read, or was missed for this reason.
  void read(Clock::time_point start, int64_t bytes, const std::optional<Miss>& why);
  void put(Clock::time_point start, int64_t bytes, const PutResult& result);
  // What a probe has found: nullopt and kStored if the tier works.
  void probed(const std::optional<Miss>& why, const PutResult& result);
  void evicted(int64_t n);
  void removed();
  // A record that will not be used, which is no event of its own.
  void problem(const Miss& why);

 private:
  // With the mutex held:
  void missed(const Miss& why);
  void written(const PutResult& result);

  mutable std::mutex mutex_;
  TierStats stats_;
};

}  // namespace vlcache
