// Counting locks a mutex: its cost does not show beside that of an event, a system call at least.
#include "store/tier_counter.h"

namespace vlcache {

TierStats TierCounter::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void TierCounter::missed(const Miss& why) {
  const int64_t n_failed = stats_.n_failed();
  ++stats_.n_missed[static_cast<size_t>(why.reason)];
  if (stats_.n_failed() > n_failed) stats_.last_problem = describe(why);
}

void TierCounter::opened(Clock::time_point start, const std::optional<Miss>& why) {
  const std::lock_guard lock(mutex_);
  stats_.read_ms += ms_since(start);
  if (why) {
    missed(*why);
  } else {
    ++stats_.n_hits;
  }
}

void TierCounter::read(Clock::time_point start, int64_t bytes, const std::optional<Miss>& why) {
  const std::lock_guard lock(mutex_);
  stats_.read_ms += ms_since(start);
  if (why) {
    missed(*why);
  } else {
    stats_.bytes_read += bytes;
  }
}

void TierCounter::put(Clock::time_point start, int64_t bytes, const PutResult& result) {
  const std::lock_guard lock(mutex_);
  stats_.write_ms += ms_since(start);
  ++stats_.n_put[static_cast<size_t>(result.outcome)];
  if (result.outcome == PutOutcome::kStored) stats_.bytes_written += bytes;
  if (result.there() || result.outcome == PutOutcome::kOutranked) return;
  stats_.last_problem = std::string(put_outcome_name(result.outcome)) + ": " + result.detail;
}

void TierCounter::evicted(int64_t n) {
  const std::lock_guard lock(mutex_);
  stats_.n_evictions += n;
}

void TierCounter::problem(const Miss& why) {
  const std::lock_guard lock(mutex_);
  stats_.last_problem = describe(why);
}

void TierCounter::removed() {
  const std::lock_guard lock(mutex_);
  ++stats_.n_removed;
}

}  // namespace vlcache
