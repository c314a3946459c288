// Stores are slow while a thread computes, and only then.
#include "store/save_pace.h"

#include <gtest/gtest.h>

#include <thread>

#include "store/store_testing.h"
#include "store/store_worker.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;

double ms_of_storing(const SavePace& pace, int64_t bytes, Deadline deadline = kNoDeadline) {
  const auto start = Clock::now();
  pace.stored(bytes, deadline);
  return ms_since(start);
}

TEST(SavePace, SavesAreNotDelayedWhileNothingComputes) {
  SavePace pace(1000);
  EXPECT_FALSE(pace.computing());
  EXPECT_LT(ms_of_storing(pace, 1'000'000), 10'000);  // not 1000 s
  const SavePace::Computing without_pace(nullptr);
}

TEST(SavePace, SavesArePacedWhileRequestsCompute) {
  SavePace pace(1'000'000);
  const SavePace::Computing one(&pace);
  {
    const SavePace::Computing other(&pace);
    EXPECT_GE(ms_of_storing(pace, 30'000), 30);
  }
  EXPECT_TRUE(pace.computing());
  EXPECT_GE(ms_of_storing(pace, 30'000), 30);
  EXPECT_LT(ms_of_storing(pace, int64_t{1} << 40, Clock::now() + 20ms), 60'000);
  EXPECT_LT(ms_of_storing(pace, int64_t{1} << 40, Clock::now()), 60'000);
}

TEST(SavePace, PaceEndsWithTheComputation) {
  SavePace pace(1000);
  auto computing = std::make_unique<SavePace::Computing>(&pace);
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    computing.reset();
  });
  const double ms = ms_of_storing(pace, 1'000'000'000);
  EXPECT_GE(ms, 19);
  EXPECT_LT(ms, 60'000);
  other.join();
  std::this_thread::sleep_for(30ms);
  EXPECT_FALSE(pace.computing());
}

TEST(SavePace, StopEndsWaiting) {
  SavePace pace(1000);
  const SavePace::Computing computing(&pace);
  pace.stop();
  EXPECT_LT(ms_of_storing(pace, 1'000'000'000), 60'000);
}

using SavePaceOnDisk = StoreTest;

// 3 MB at 20 MB a second take 150 ms, whatever the disk can do; between steps, too.
TEST_F(SavePaceOnDisk, WorkerKeepsThePace) {
  DiskTier tier(options());
  SavePace pace(20e6);
  StoreWorker worker(tier, 64 << 20, &pace);
  auto computing = std::make_unique<SavePace::Computing>(&pace);
  const auto start = Clock::now();
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(worker.save(make_record(make_key(n), {1'000'000}).record));
  while (tier.list().size() < 3) {
    computing.reset();
    computing = std::make_unique<SavePace::Computing>(&pace);
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_GE(ms_since(start), 150);
  for (int n = 0; n < 3; ++n) EXPECT_FALSE(verify_record(tier, make_key(n)));
}

}  // namespace
}  // namespace vlcache
