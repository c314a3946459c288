#include "base/os/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace vlcache {
namespace {

class Threads : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_threads(GetParam()); }
  void TearDown() override { set_threads(2); }
};

TEST_P(Threads, EveryIndexRunsOnce) {
  ASSERT_EQ(n_threads(), GetParam());
  for (int64_t n : {0, 1, 2, 7, 1000}) {
    std::vector<int> hits(static_cast<size_t>(n));  // not atomic: each is one thread's, and seen after the loop
    parallel_for(n, [&](int64_t i, int thread) {
      EXPECT_LE(0, thread);
      EXPECT_LT(thread, n_threads());
      ++hits[static_cast<size_t>(i)];
    });
    EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(n), 1));
  }
}

TEST_P(Threads, RangesCoverAllIndicesAndStartAtMultiplesOfTheGrain) {
  for (int64_t n : {0, 1, 15, 16, 17, 100, 1000}) {
    std::vector<int> hits(static_cast<size_t>(n));
    std::atomic<int> n_ranges{0};
    parallel_ranges(n, 16, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_EQ(begin % 16, 0);
      EXPECT_LT(begin, end);
      EXPECT_LT(thread, n_threads());
      for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      ++n_ranges;
    });
    EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(n), 1));
    EXPECT_LE(n_ranges, GetParam());
  }
}

// The second thread runs its loop alone.
TEST_P(Threads, LoopsOfSeveralThreadsRunConcurrently) {
  const auto count = [](bool alone) {
    for (int round = 0; round < 200; ++round) {
      std::optional<InlineLoops> inline_loops;
      if (alone) inline_loops.emplace();
      const std::thread::id here = std::this_thread::get_id();
      std::vector<int> hits(100);
      parallel_for(100, [&](int64_t i, int thread) {
        EXPECT_LT(thread, n_threads());
        if (alone) {
          EXPECT_EQ(std::this_thread::get_id(), here);
        }
        ++hits[static_cast<size_t>(i)];
      });
      parallel_ranges(100, 3, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(hits, std::vector<int>(100, 2));
    }
  };
  std::vector<std::thread> threads;
  for (const bool alone : {false, false, true}) threads.emplace_back(count, alone);
  count(false);
  for (std::thread& t : threads) t.join();
}

// A thread index is one thread's at a time: scratch is chosen by it.
TEST_P(Threads, NoTwoThreadsShareAnIndex) {
  std::vector<std::atomic<int>> inside(static_cast<size_t>(GetParam()));
  parallel_for(500, [&](int64_t i, int thread) {
    std::atomic<int>& mine = inside[static_cast<size_t>(thread)];
    EXPECT_EQ(mine.fetch_add(1), 0);
    if (i % 50 == 0) std::this_thread::yield();
    mine.fetch_sub(1);
  });
}

// A loop reads what the previous one wrote, whichever thread runs it; loops start while workers spin and while they
// sleep.
TEST_P(Threads, LoopsSeeTheWritesOfEarlierLoops) {
  std::vector<int64_t> values(8);
  for (int loop = 0; loop < 4000; ++loop) {
    if (loop % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    parallel_for(8, [&](int64_t i, int) { values[static_cast<size_t>((i + loop) % 8)] += i; });
  }
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 4000 * 28);
}

INSTANTIATE_TEST_SUITE_P(All, Threads, testing::Values(1, 2, 3, 7, 40));

TEST(ThreadPool, GrowsAndShrinks) {
  for (int n : {1, 5, 2, 9, 1, 3, 3, 8, 2}) {
    set_threads(n);
    EXPECT_EQ(n_threads(), n);
    std::atomic<int64_t> sum{0};
    parallel_for(100, [&](int64_t i, int thread) {
      EXPECT_LT(thread, n);
      sum += i;
    });
    EXPECT_EQ(sum, 4950);
  }
}

// Workers help: no chunk waits for a worker that has not arrived. Here all but one chunk hold their thread until they
// have seen every other chunk begun, so as many threads as chunks must take part.
TEST(ThreadPool, EveryConfiguredThreadTakesPart) {
  set_threads(3);
  std::atomic<int> begun{0};
  std::vector<std::thread::id> runners(3);
  parallel_for(3, [&](int64_t i, int) {
    runners[static_cast<size_t>(i)] = std::this_thread::get_id();
    ++begun;
    while (begun < 3) std::this_thread::yield();
  });
  EXPECT_EQ(std::set<std::thread::id>(runners.begin(), runners.end()).size(), 3u);
  set_threads(2);
}

// A worker that was put to sleep in the middle of a chunk holds up that chunk only.
TEST(ThreadPool, CallerRunsChunksThatAreNotStarted) {
  set_threads(2);
  const std::thread::id starter = std::this_thread::get_id();
  std::atomic<int> by_starter{0};
  std::atomic<bool> worker_came{false};
  parallel_for(100, [&](int64_t i, int) {
    if (std::this_thread::get_id() != starter) {
      worker_came = true;
      while (by_starter < 98) std::this_thread::yield();  // off its CPU for as long as the others take
      return;
    }
    while (i == 0 && !worker_came) std::this_thread::yield();
    ++by_starter;
  });
  EXPECT_GE(by_starter, 98);
}

TEST(ThreadPool, SingleChunkRunsOnTheCallingThread) {
  set_threads(4);
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(1, [&](int64_t, int thread) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(thread, 0);
    parallel_ranges(10, 16, [&](int64_t, int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  });
  set_threads(2);
}

TEST(ThreadPoolDeathTest, NestedLoopsAreRejected) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  set_threads(2);
  EXPECT_DEATH(parallel_for(2, [](int64_t, int) { parallel_for(2, [](int64_t, int) {}); }), "CHECK|busy");
}

#if !defined(__SANITIZE_THREAD__)  // TSan refuses threads after a fork
TEST(ThreadPool, ForkedChildRunsLoopsOnItsOwnThread) {
  set_threads(3);
  parallel_for(3, [](int64_t, int) {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that waits for workers it does not have
    std::atomic<int> n{0};
    for (int loop = 0; loop < 100; ++loop) parallel_for(10, [&](int64_t, int) { ++n; });
    set_threads(2);
    parallel_for(10, [&](int64_t, int) { ++n; });
    _exit(n == 1010 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  set_threads(2);
}
#endif

}  // namespace
}  // namespace vlcache
