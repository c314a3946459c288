#include "cli/terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/format.h"

namespace vlcache {
namespace {
constexpr int kWidth = 30;
constexpr std::chrono::milliseconds kBarInterval{250}, kLineInterval{10000};

void draw_bar(const std::string& label, double share, const std::string& after) {
  const int filled = static_cast<int>(share * kWidth);
  std::fprintf(stderr, "\r%s [%s%s] %3d%%%s", label.c_str(), std::string(static_cast<size_t>(filled), '#').c_str(),
               std::string(static_cast<size_t>(kWidth - filled), ' ').c_str(), static_cast<int>(share * 100),
               after.c_str());
  std::fflush(stderr);
}

double share_of(int64_t done, int64_t total) {
  return total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
}

// "", or the time left at the pace so far.
std::string time_left(double share, std::chrono::steady_clock::duration passed) {
  const double seconds = std::chrono::duration<double>(passed).count();
  if (share <= 0.02 || seconds < 2) return "";
  const double left = seconds / share - seconds;
  return left < 90 ? format(", about %.0f s left", left) : format(", about %.0f min left", left / 60);
}

}  // namespace

Progress::Progress() : on_terminal_(isatty(STDERR_FILENO) != 0), thread_([this] { run(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ended_.notify_all();
  thread_.join();
  pause();
}

void Progress::update(const std::string& label, int64_t done, int64_t total) {
  const std::lock_guard lock(mutex_);
  if (label != label_) {
    label_ = label;
    phase_begin_ = std::chrono::steady_clock::now();
  }
  done_ = done;
  total_ = total;
}

void Progress::pause() {
  const std::lock_guard lock(mutex_);
  label_.clear();
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void Progress::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (on_terminal_) {
      ended_.wait_for(lock, kBarInterval);
    } else {
      ended_.wait_for(lock, kLineInterval);
    }
    if (!ends_ && !label_.empty()) print();
  }
}

// With the mutex held.
void Progress::print() {
  const double share = share_of(done_, total_);
  const auto passed = std::chrono::steady_clock::now() - phase_begin_;
  const std::string left = time_left(share, passed);
  if (total_ <= 0) {
    const std::string seconds = format("%.0f s", std::chrono::duration<double>(passed).count());
    std::fprintf(stderr, on_terminal_ ? "\r%s ... %s\x1b[K" : "%s: %s\n", label_.c_str(), seconds.c_str());
    drawn_ = on_terminal_;
  } else if (on_terminal_) {
    draw_bar(label_, share, left + "\x1b[K");
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s: %.0f %%%s\n", label_.c_str(), 100 * share, left.c_str());
  }
}

}  // namespace vlcache
