#include "cli/terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/format.h"

namespace vlcache {
namespace {
constexpr int kWidth = 30;
constexpr std::chrono::milliseconds kBarInterval{250}, kLineInterval{10000};
constexpr double kLongest = 1e6;  // seconds; more would overflow the clock

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

// Seconds at the pace so far; below 1: it is too early to say.
double seconds_left(double share, double seconds_passed) {
  return share <= 0.02 || seconds_passed < 2 ? 0 : seconds_passed / share - seconds_passed;
}

std::string time_left(double left) {
  if (left < 1) return "";
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

void Progress::update(const std::string& label, int64_t done, int64_t total, std::optional<double> seconds_left) {
  const std::lock_guard lock(mutex_);
  if (label != label_) {
    label_ = label;
    phase_begin_ = std::chrono::steady_clock::now();
  }
  done_ = done;
  total_ = total;
  end_.reset();
  if (!seconds_left) return;
  const std::chrono::duration<double> left(std::min(*seconds_left, kLongest));
  end_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(left);
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
  const auto now = std::chrono::steady_clock::now();
  const double passed = std::chrono::duration<double>(now - phase_begin_).count();
  const double seconds = end_ ? std::chrono::duration<double>(*end_ - now).count() : seconds_left(share, passed);
  const std::string left = time_left(seconds);
  if (total_ <= 0) {
    std::fprintf(stderr, on_terminal_ ? "\r%s ... %.0f s\x1b[K" : "%s: %.0f s\n", label_.c_str(), passed);
    drawn_ = on_terminal_;
  } else if (on_terminal_) {
    draw_bar(label_, share, left + "\x1b[K");
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s: %.0f %%%s\n", label_.c_str(), 100 * share, left.c_str());
  }
}

}  // namespace vlcache
