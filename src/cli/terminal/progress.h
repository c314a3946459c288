// ProgressBar: a progress line on stderr that is erased when the work is done. Prints nothing if stderr is not a
// terminal. LongProgress: the same of work that takes minutes, on pipes, too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace vlcache {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most twenty times a second, and not before 200 ms of work: short work shows nothing.
  void update(int64_t done, int64_t total);
  void clear();

 private:
  std::string label_;
  bool on_terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// Progress through phases, printed by a thread of its own, so that it appears and moves while a step takes long: on a
// terminal a bar, otherwise a line every ten seconds. Erased at the end.
class LongProgress {
 public:
  LongProgress();
  ~LongProgress();
  LongProgress(const LongProgress&) = delete;
  LongProgress& operator=(const LongProgress&) = delete;

  // Of the phase `label`; the first call with another label begins it.
  void update(const std::string& label, int64_t done, int64_t total);
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
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace vlcache
