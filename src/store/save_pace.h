// SavePace: how fast records are stored. As fast as the medium takes them while nobody computes; beside somebody who
// does, so slowly that it hardly shows.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/kv_tier.h"

namespace vlcache {

class SavePace {
 public:
  // An image's KV takes seconds of computing for 100 MB: what is stored so slowly falls behind only where images come
  // from elsewhere, and then the queue's bound is what gives.
  static constexpr double kBytesPerSecond = 24 << 20;

  explicit SavePace(double bytes_per_second = kBytesPerSecond) : bytes_per_second_(bytes_per_second) {}
  SavePace(const SavePace&) = delete;

  // Says that somebody computes, for as long as it lives. Of nobody's pace: says nothing.
  class Computing {
   public:
    explicit Computing(SavePace* pace);
    ~Computing();
    Computing(const Computing&) = delete;

   private:
    SavePace* pace_;
  };

  // Whether somebody does, or did a moment ago: between two steps nothing is gained by hurrying.
  bool computing() const;
  // For who has stored so many bytes: returns when they may have been stored, at once where nobody computes, at the
  // deadline at the latest.
  void stored(int64_t bytes, Deadline deadline) const;
  // From now on nobody waits.
  void stop() { stopped_ = true; }

 private:
  const double bytes_per_second_;
  std::atomic<int> n_computing_{0};
  std::atomic<Clock::rep> last_computed_{Clock::time_point::min().time_since_epoch().count()};
  std::atomic<bool> stopped_{false};
};

}  // namespace vlcache
