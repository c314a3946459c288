#include "server/http/body_pace.h"

#include <algorithm>

namespace vlcache {
namespace {

// A year at most, so that sums of times do not overflow.
std::chrono::milliseconds time_of(uint64_t bytes, uint64_t bytes_per_s) {
  constexpr uint64_t kYear = 365 * 86400;
  const uint64_t rate = std::max<uint64_t>(bytes_per_s, 1);
  if (bytes / rate >= kYear) return std::chrono::seconds(kYear);
  return std::chrono::milliseconds(bytes / rate * 1000 + bytes % rate * 1000 / rate);
}

// "60 s", "0.3 s".
std::string seconds(std::chrono::milliseconds time) {
  const int64_t ms = time.count();
  return std::to_string(ms / 1000) + (ms < 10'000 ? "." + std::to_string(ms / 100 % 10) : "") + " s";
}

}  // namespace

BodyPace::BodyPace(const HttpOptions& options, Clock::time_point begin)
    : begin_(begin),
      silence_(options.request_timeout),
      whole_(options.body_timeout + time_of(options.max_body_bytes, options.full_bytes_per_s)),
      min_bytes_per_s_(options.min_bytes_per_s) {}

Clock::time_point BodyPace::deadline(Clock::time_point now, uint64_t received) {
  const Clock::time_point silent = now + silence_, slow = begin_ + silence_ + time_of(received, min_bytes_per_s_),
                          whole = begin_ + whole_;
  const Clock::time_point first = std::min({silent, slow, whole});
  // Before the first byte, silence and speed are one.
  bound_ = first == silent || received == 0 ? Bound::kSilence : first == slow ? Bound::kSpeed : Bound::kWhole;
  return first;
}

std::string BodyPace::reason() const {
  switch (bound_) {
    case Bound::kSilence:
      return "the request's body stopped arriving: no byte in " + seconds(silence_);
    case Bound::kSpeed:
      return "the request's body arrives too slowly: fewer than " + std::to_string(min_bytes_per_s_) +
             " bytes per second after the first " + seconds(silence_);
    case Bound::kWhole:
      break;
  }
  return "the request's body was not complete after " + seconds(whole_);
}

}  // namespace vlcache
