#include "cli/terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace vlcache {
namespace {
constexpr int kWidth = 30;
constexpr auto kDelay = std::chrono::milliseconds(200);
constexpr auto kInterval = std::chrono::milliseconds(50);
}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      on_terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

void ProgressBar::update(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!on_terminal_ || total <= 0 || now - start_ < kDelay || (drawn_ && now - last_ < kInterval)) return;
  last_ = now;
  drawn_ = true;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int filled = static_cast<int>(share * kWidth);
  std::fprintf(stderr, "\r%s [%s%s] %3d%%", label_.c_str(), std::string(static_cast<size_t>(filled), '#').c_str(),
               std::string(static_cast<size_t>(kWidth - filled), ' ').c_str(), static_cast<int>(share * 100));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace vlcache
