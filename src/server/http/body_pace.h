// BodyPace says how long a server waits for more of a request's body: a client that sends steadily is waited for, one
// that is silent, or that holds its connection with a byte now and then, is not.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "server/http/http_server.h"

namespace vlcache {

class BodyPace {
 public:
  // The body begins at `begin`. Of the options, request_timeout, min_bytes_per_s, body_timeout, full_bytes_per_s and
  // max_body_bytes set the bounds.
  BodyPace(const HttpOptions& options, Clock::time_point begin);

  // When the wait for more ends, if `received` bytes of the body have come by `now`.
  Clock::time_point deadline(Clock::time_point now, uint64_t received);
  // Which bound set the last deadline, for the client: "the request's body ...".
  std::string reason() const;

 private:
  enum class Bound { kSilence, kSpeed, kWhole };

  Clock::time_point begin_;
  std::chrono::milliseconds silence_, whole_;
  uint64_t min_bytes_per_s_;
  Bound bound_ = Bound::kSilence;
};

}  // namespace vlcache
