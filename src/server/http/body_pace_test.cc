// How long bodies of all speeds are waited for, computed without sockets.
#include "server/http/body_pace.h"

#include <gtest/gtest.h>

#include <optional>

namespace vlcache {
namespace {

using namespace std::chrono_literals;

// What the client is told, if bytes_per_s in pieces every `every` do not complete `bytes` in time; none: the body is
// complete.
std::optional<std::string> refusal(const HttpOptions& options, uint64_t bytes, double bytes_per_s,
                                   std::chrono::milliseconds every = 1s) {
  const Clock::time_point begin{};
  BodyPace pace(options, begin);
  uint64_t received = 0;
  Clock::time_point now = begin;
  while (received < bytes) {
    const Clock::time_point deadline = pace.deadline(now, received);
    now += every;
    if (now > deadline) return pace.reason();
    received = static_cast<uint64_t>(bytes_per_s * std::chrono::duration<double>(now - begin).count());
  }
  return std::nullopt;
}

TEST(BodyPace, SteadyUploadsAreWaitedFor) {
  const HttpOptions usual;
  EXPECT_EQ(refusal(usual, 5 << 20, 64 << 10), std::nullopt);       // 80 s
  EXPECT_EQ(refusal(usual, 40 << 20, 5e6 / 8), std::nullopt);       // 67 s
  EXPECT_EQ(refusal(usual, 64 << 20, 8e6 / 8), std::nullopt);       // 67 s
  EXPECT_EQ(refusal(usual, 64 << 20, 1e6 / 8), std::nullopt);       // 9 minutes
  EXPECT_EQ(refusal(usual, 200'000, 2000), std::nullopt);           // 100 s
  EXPECT_EQ(refusal(usual, 5 << 20, 64 << 10, 59s), std::nullopt);  // in gulps
  EXPECT_EQ(refusal({.max_body_bytes = uint64_t{4} << 30}, uint64_t{4} << 30, 1 << 20, 10s), std::nullopt);
}

TEST(BodyPace, SlowOnesAreNot) {
  const HttpOptions usual;
  const auto says = [](const std::optional<std::string>& text, std::string_view part) {
    return text && text->find(part) != text->npos;
  };
  EXPECT_TRUE(says(refusal(usual, 100, 0), "no byte in 60 s"));
  EXPECT_TRUE(says(refusal(usual, 1 << 20, 64 << 10, 61s), "no byte in 60 s"));
  EXPECT_TRUE(says(refusal(usual, 1 << 20, 1), "fewer than 1024 bytes per second after the first 60 s"));
  EXPECT_TRUE(says(refusal(usual, 1 << 20, 900, 50s), "fewer than 1024 bytes per second"));
  EXPECT_TRUE(says(refusal(usual, 64 << 20, 60'000), "not complete after 556 s"));
  // The bound on the whole grows with the largest body, so the slowest hold a connection for minutes.
  EXPECT_EQ(refusal({.max_body_bytes = 256 << 20}, 64 << 20, 60'000), std::nullopt);
  EXPECT_TRUE(says(refusal({.max_body_bytes = 1 << 20}, 1 << 20, 1100), "not complete after 304 s"));
}

TEST(BodyPace, BoundsOfAnySizeDoNotOverflow) {
  const HttpOptions none{.max_body_bytes = UINT64_MAX, .min_bytes_per_s = 0, .full_bytes_per_s = 0};
  BodyPace pace(none, Clock::time_point{});
  EXPECT_GT(pace.deadline(Clock::time_point{}, 0), Clock::time_point{});
  EXPECT_EQ(pace.deadline(Clock::time_point{}, UINT64_MAX), Clock::time_point{} + 60s);
}

}  // namespace
}  // namespace vlcache
