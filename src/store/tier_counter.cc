// Counting locks a mutex: its cost does not show beside that of an event, a system call at least.
#include "store/tier_counter.h"

namespace vlcache {

TierStats TierCounter::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void TierCounter::missed(const Miss& why) {
  ++stats_.n_missed[static_cast<size_t>(why.reason)];
  const bool of_tier = why.reason == MissReason::kIo || why.reason == MissReason::kLate;
  if (is_failure(why.reason)) (of_tier ? stats_.cannot_read : stats_.bad_record) = stats_.last_problem = describe(why);
  if (of_tier) {
    stats_.failed_at = Clock::now();
  } else if (why.reason != MissReason::kCancelled) {
    stats_.cannot_read.clear();
  }
}

void TierCounter::written(const PutResult& result) {
  ++stats_.n_put[static_cast<size_t>(result.outcome)];
  if (result.outcome == PutOutcome::kStored) stats_.cannot_write.clear();
  if (!is_failure(result.outcome)) return;
  const bool of_record = result.outcome == PutOutcome::kTooLarge;
  stats_.last_problem = std::string(put_outcome_name(result.outcome)) + ": " + result.detail;
  (of_record ? stats_.large_record : stats_.cannot_write) = stats_.last_problem;
  if (!of_record) stats_.failed_at = Clock::now();
}

void TierCounter::probed(const std::optional<Miss>& why, const PutResult& result) {
  const std::lock_guard lock(mutex_);
  if (why) {
    missed(*why);
  } else {
    stats_.cannot_read.clear();
  }
  if (result.outcome != PutOutcome::kStored) {
    written(result);
  } else {
    stats_.cannot_write.clear();
  }
}

void TierCounter::opened(Clock::time_point start, const std::optional<Miss>& why) {
  const std::lock_guard lock(mutex_);
  stats_.read_ms += ms_since(start);
  if (why) {
    missed(*why);
  } else {
    ++stats_.n_hits;
    stats_.cannot_read.clear();
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
  if (result.outcome == PutOutcome::kStored) stats_.bytes_written += bytes;
  written(result);
}

void TierCounter::evicted(int64_t n) {
  const std::lock_guard lock(mutex_);
  stats_.n_evictions += n;
}

void TierCounter::problem(const Miss& why) {
  const std::lock_guard lock(mutex_);
  stats_.bad_record = stats_.last_problem = describe(why);
}

void TierCounter::removed() {
  const std::lock_guard lock(mutex_);
  ++stats_.n_removed;
}

}  // namespace vlcache
