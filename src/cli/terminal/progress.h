// ProgressBar: a progress line on stderr that is erased when the work is done. Prints nothing if stderr is not a
// terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

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

}  // namespace vlcache
