// Shows on stderr how far long work is, and the time left.
#pragma once

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace vlcache {

// Progress through phases, printed by a thread of its own, so that it appears and moves while a step takes long: on a
// terminal a bar, otherwise a line every ten seconds. Erased at the end.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Of the phase `label`; the first call with another label begins it. total 0: not known, the time passed is shown.
  // seconds_left: none: estimated from the phase so far.
  void update(const std::string& label, int64_t done, int64_t total, std::optional<double> seconds_left = {});
  // Stops printing until the next update.
  void pause();

 private:
  void run();
  void print();

  const bool on_terminal_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false, drawn_ = false;
  std::string label_;  // empty: nothing to print
  int64_t done_ = 0, total_ = 0;
  std::chrono::steady_clock::time_point phase_begin_;
  std::optional<std::chrono::steady_clock::time_point> end_;  // as the caller expects it
  std::thread thread_;                                        // the last member: it uses the others
};

// Of work with one phase.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label) : label_(std::move(label)) {}

  void update(int64_t done, int64_t total) {
    if (total > 0) progress_.update(label_, done, total);
  }
  // Before it is known how much there is to do.
  void begin() { progress_.update(label_, 0, 0); }
  void show(double share, std::optional<double> seconds_left) {
    progress_.update(label_, std::llround(share * kParts), kParts, seconds_left);
  }
  void clear() { progress_.pause(); }

 private:
  static constexpr int64_t kParts = 1000;
  std::string label_;
  Progress progress_;
};

}  // namespace vlcache
