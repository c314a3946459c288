#include "engine/scheduler/progress_meter.h"

#include <algorithm>

namespace vlcache {
namespace {

// Work that is not counted (scores of a policy, the sampler) comes last.
constexpr double kMostBeforeEnd = 0.99;

// From this share of the work on, the request's own time corrects the machine's pace fully.
constexpr double kOwnTimeCounts = 0.2;

}  // namespace

void ProgressMeter::run(Clock::time_point now) {
  if (!running_since_) running_since_ = now;
}

void ProgressMeter::pause(Clock::time_point now) {
  running_ms_ = running_ms(now);
  running_since_.reset();
}

double ProgressMeter::running_ms(Clock::time_point now) const {
  return running_ms_ + (running_since_ ? std::chrono::duration<double, std::milli>(now - *running_since_).count() : 0);
}

double ProgressMeter::share() {
  if (share_ == 1) return share_;
  const double done = done_.all() + under_way_.all(), all = done_.all() + left_.all();
  if (all > 0) share_ = std::max(share_, std::min(done / all, kMostBeforeEnd));
  return share_;
}

std::optional<double> ProgressMeter::seconds_left(const ComputePace& pace, Clock::time_point now) const {
  if (share_ == 1) return 0;
  ComputeWork done = done_;
  done += under_way_;
  const ComputeWork left{.images = std::max(0.0, left_.images - under_way_.images),
                         .prompt = std::max(0.0, left_.prompt - under_way_.prompt)};
  if (left_.all() == 0) return done.all() > 0 ? std::optional(0.0) : std::nullopt;
  const double own_ms = running_ms(now);
  const std::optional<double> left_ms = pace.ms(left);
  if (!left_ms) {
    if (done.all() == 0) return std::nullopt;
    return left.all() * own_ms / done.all() / 1000;
  }
  // Other requests share the machine: the work is slower than by itself.
  const double expected_ms = *pace.ms(done), share = done.all() / (done.all() + left.all());
  const double counts = expected_ms > 0 ? std::min(1.0, share / kOwnTimeCounts) : 0;
  const double slower = expected_ms > 0 ? own_ms / expected_ms : 1;
  return *left_ms * (1 + counts * (slower - 1)) / 1000;
}

}  // namespace vlcache
