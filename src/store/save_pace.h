// SavePace limits how fast records are stored: at the speed of the medium while no thread computes; while one does,
// slowly enough that it hardly shows.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/kv_tier.h"

namespace vlcache {

class SavePace {
 public:
  // An image's KV takes seconds of computing for 100 MB: stores at this speed lag only if images are computed
  // elsewhere, and then saves are refused at the queue's bound.
  static constexpr double kBytesPerSecond = 24 << 20;

  explicit SavePace(double bytes_per_second = kBytesPerSecond) : bytes_per_second_(bytes_per_second) {}
  SavePace(const SavePace&) = delete;

  // Marks a thread as computing for this object's lifetime. A null pace: no effect.
  class Computing {
   public:
    explicit Computing(SavePace* pace);
    ~Computing();
    Computing(const Computing&) = delete;

   private:
    SavePace* pace_;
  };

  // Whether a thread computes, or did a moment ago: hurrying between two steps gains nothing.
  bool computing() const;
  // Called after storing this many bytes: returns once their time has passed, at once if no thread computes, at the
  // deadline at the latest.
  void stored(int64_t bytes, Deadline deadline) const;
  // From now on stored() does not wait.
  void stop() { stopped_ = true; }

 private:
  const double bytes_per_second_;
  std::atomic<int> n_computing_{0};
  std::atomic<Clock::rep> last_computed_{Clock::time_point::min().time_since_epoch().count()};
  std::atomic<bool> stopped_{false};
};

}  // namespace vlcache
