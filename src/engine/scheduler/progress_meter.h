// ProgressMeter measures how much of the work before a request's first token is done, and predicts when the rest will
// be.
#pragma once

#include <optional>

#include "base/clock.h"
#include "engine/compute_pace.h"

namespace vlcache {

class ProgressMeter {
 public:
  // The request computes from now on. After pause() time does not count until then.
  void run(Clock::time_point now);
  void pause(Clock::time_point now);
  // Adds work that is computed for good.
  void add(const ComputeWork& work) { done_ += work; }
  // Replaces the work that is known to be left.
  void set_left(const ComputeWork& work) { left_ = work; }
  // The part of it that a step has done so far.
  void set_under_way(const ComputeWork& work) { under_way_ = work; }
  // The first token is there.
  void finish() { share_ = 1; }

  // 0 to 1; below 1 until finish(). Never falls: when more work is found to be left, it stays.
  double share();
  // none: neither this machine's pace nor the work is known.
  std::optional<double> seconds_left(const ComputePace& pace, Clock::time_point now) const;
  // Time between run() and pause(), all times together.
  double running_ms(Clock::time_point now) const;

 private:
  ComputeWork done_, under_way_, left_;
  double share_ = 0;
  double running_ms_ = 0;  // up to running_since_
  std::optional<Clock::time_point> running_since_;
};

}  // namespace vlcache
