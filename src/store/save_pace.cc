// Waits in short intervals, so that a store returns to full speed as soon as computing ends.
#include "store/save_pace.h"

#include <algorithm>
#include <thread>

namespace vlcache {
namespace {

constexpr std::chrono::milliseconds kMoment{20};  // longer than anything between two steps of a batch
constexpr std::chrono::milliseconds kLook{5};

}  // namespace

SavePace::Computing::Computing(SavePace* pace) : pace_(pace) {
  if (pace_ != nullptr) ++pace_->n_computing_;
}

SavePace::Computing::~Computing() {
  if (pace_ == nullptr) return;
  pace_->last_computed_ = Clock::now().time_since_epoch().count();
  --pace_->n_computing_;
}

bool SavePace::computing() const {
  if (n_computing_ > 0) return true;
  return Clock::now().time_since_epoch().count() < last_computed_ + Clock::duration(kMoment).count();
}

void SavePace::stored(int64_t bytes, Deadline deadline) const {
  const std::chrono::duration<double> due(static_cast<double>(bytes) / bytes_per_second_);
  const Deadline until = std::min(deadline, Clock::now() + std::chrono::duration_cast<Clock::duration>(due));
  while (!stopped_ && computing()) {
    const auto now = Clock::now();
    if (now >= until) return;
    std::this_thread::sleep_until(std::min(until, now + kLook));
  }
}

}  // namespace vlcache
