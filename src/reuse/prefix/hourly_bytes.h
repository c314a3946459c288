// HourlyBytes bounds the bytes of any hour, in minutes: an hour before now is up to a minute longer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace vlcache {

class HourlyBytes {
 public:
  explicit HourlyBytes(int64_t most) : most_(most) {}

  int64_t most() const { return most_; }
  // Bytes of the hour before `now`.
  int64_t used(Clock::time_point now) {
    const int64_t minute = minute_of(now);
    while (!minutes_.empty() && minutes_.front().minute + 60 < minute) {
      used_ -= minutes_.front().bytes;
      minutes_.pop_front();
    }
    return used_;
  }
  bool fits(int64_t bytes, Clock::time_point now) { return bytes <= most_ - used(now); }
  // A `now` before that of an earlier call counts as that.
  void add(int64_t bytes, Clock::time_point now) {
    const int64_t minute = minute_of(now);
    if (minutes_.empty() || minutes_.back().minute < minute) minutes_.push_back({minute, 0});
    minutes_.back().bytes += bytes;
    used_ += bytes;
  }

 private:
  struct Minute {
    int64_t minute, bytes;
  };
  static int64_t minute_of(Clock::time_point at) {
    return std::chrono::floor<std::chrono::minutes>(at.time_since_epoch()).count();
  }

  int64_t most_, used_ = 0;
  std::deque<Minute> minutes_;  // the last hour's
};

}  // namespace vlcache
