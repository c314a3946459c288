// A pool whose workers help: the thread that starts a loop runs every chunk that no worker has begun, and waits only
// for chunks in progress. A waiting thread spins for a moment, then sleeps.
#include "base/os/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/os/machine.h"
#include "base/os/signals.h"

namespace vlcache {
namespace {

using Clock = std::chrono::steady_clock;

// A loop of a decode step takes some tens of microseconds: on an idle machine the next loop, or the last chunk, arrives
// before this time has passed. Under load it is what a thread wastes while the thread it waits for is off its CPU for
// milliseconds. Measured: 10 to 1000 make no difference beyond noise, 0 costs a third of tinydoc's idle decode.
constexpr Clock::duration kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 16;  // between two readings of the clock

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` is `value`; true if another thread woke this one.
bool sleep_while(std::atomic<int32_t>& word, int32_t value) {
  static_assert(sizeof(word) == sizeof(int32_t));
  return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0) == 0;
}

// Wakes at most n sleepers; returns the number woken.
int wake(std::atomic<int32_t>& word, int n) {
  return static_cast<int>(syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, n, nullptr, nullptr, 0));
}

// True as soon as `holds`, false when it did not for kSpin.
template <typename Condition>
bool spin_until(const Condition& holds) {
  const Clock::time_point end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (holds()) return true;
      pause_briefly();
    }
  } while (Clock::now() < end);
  return holds();
}

thread_local bool t_in_loop = false;  // this thread runs tasks of the pool
thread_local int t_n_inline = 0;      // InlineLoops alive in this thread

// One loop at a time. Trivially destructible, and its threads are detached: exit waits for none of them, and sleeping
// workers touch nothing that is destroyed. A forked child has no workers and runs its loops alone.
class Pool {
 public:
  void resize(int n) {
    CHECK(n >= 1 && !busy_);
    n_threads_ = n;
    while (n_workers_ > n - 1) {  // workers past the end exit when they see it
      sleepers_ -= wake(unclaimed_, INT_MAX);
      std::this_thread::yield();
    }
    started_ = false;
  }

  int size() {
    if (n_threads_ == 0) n_threads_ = usable_cpus();
    return n_threads_;
  }

  // Chunks [0, n), n <= INT32_MAX.
  void run(int64_t n, FunctionRef<void(int64_t, int)> chunk) noexcept {
    CHECK(!t_in_loop);
    if (t_n_inline > 0 || busy_.exchange(true)) {
      for (int64_t i = 0; i < n; ++i) chunk(i, 0);
      return;
    }
    if (!started_) start();
    n_chunks_ = static_cast<int32_t>(n);
    chunk_ = &chunk;
    unfinished_.store(n_chunks_, std::memory_order_relaxed);
    unclaimed_.store(n_chunks_);  // in one order with sleepers_: a thread about to sleep sees it, or is seen
    if (sleepers_.load() > 0) sleepers_ -= wake(unclaimed_, n_chunks_ - 1);
    help(0);
    wait_for_others();
    busy_.store(false);
  }

 private:
  void start() {
    started_ = true;
    static const int at_fork = pthread_atfork(nullptr, nullptr, forget_workers);
    CHECK(at_fork == 0);
    try {
      while (n_workers_ < n_threads_ - 1) {
        const int thread = n_workers_ + 1;
        std::thread([this, thread] { work(thread); }).detach();
        ++n_workers_;
      }
    } catch (const std::system_error&) {
      // The existing workers do all the work.
    }
  }

  static void forget_workers();

  void work(int thread) noexcept {
    ensure_signal_stack();
    const auto called = [&] { return unclaimed_.load(std::memory_order_relaxed) > 0 || thread >= n_threads_; };
    while (thread < n_threads_) {
      help(thread);
      if (spin_until(called)) continue;
      ++sleepers_;  // the waking thread subtracts it again
      if (!sleep_while(unclaimed_, 0)) --sleepers_;
    }
    --n_workers_;
  }

  // Runs chunks until none is left to begin.
  void help(int thread) {
    int32_t n_done = 0;
    t_in_loop = true;
    int32_t left = unclaimed_.load(std::memory_order_relaxed);
    while (left > 0) {
      if (!unclaimed_.compare_exchange_weak(left, left - 1, std::memory_order_acquire, std::memory_order_relaxed))
        continue;
      // The loop cannot end before this chunk is reported, so chunk_ stays valid.
      (*chunk_)(n_chunks_ - left, thread);
      ++n_done;
      left = unclaimed_.load(std::memory_order_relaxed);
    }
    t_in_loop = false;
    if (n_done > 0 && unfinished_.fetch_sub(n_done) == n_done && starter_sleeps_.load()) wake(unfinished_, 1);
  }

  void wait_for_others() {
    const auto finished = [&] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (spin_until(finished)) return;
    starter_sleeps_.store(true);
    for (int32_t left = unfinished_.load(); left > 0; left = unfinished_.load()) sleep_while(unfinished_, left);
    starter_sleeps_.store(false);
  }

  // Chunks not begun yet: workers claim them here, and sleep on it.
  alignas(64) std::atomic<int32_t> unclaimed_{0};
  // Chunks not reported as done: what the starter waits for.
  alignas(64) std::atomic<int32_t> unfinished_{0};
  std::atomic<bool> starter_sleeps_{false};
  // The loop: written by the starter while nothing is claimed.
  alignas(64) int32_t n_chunks_ = 0;
  const FunctionRef<void(int64_t, int)>* chunk_ = nullptr;
  bool started_ = false;
  std::atomic<bool> busy_{false};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> n_threads_{0};  // 0: not asked yet
  std::atomic<int> n_workers_{0};
};

constinit Pool g_pool;

void Pool::forget_workers() {
  g_pool.n_workers_ = 0;
  g_pool.sleepers_ = 0;
}

}  // namespace

InlineLoops::InlineLoops() { ++t_n_inline; }
InlineLoops::~InlineLoops() { --t_n_inline; }

void set_threads(int n) { g_pool.resize(n); }
int n_threads() { return g_pool.size(); }

void parallel_for(int64_t n, FunctionRef<void(int64_t, int)> task) {
  if (n > 1 && n_threads() > 1) {
    CHECK(n <= INT32_MAX);
    return g_pool.run(n, task);
  }
  for (int64_t i = 0; i < n; ++i) task(i, 0);
}

void parallel_ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> body) {
  CHECK(grain >= 1);
  const int64_t blocks = (n + grain - 1) / grain;
  const int64_t shares = std::min<int64_t>(n_threads(), blocks);
  if (shares <= 1) {
    if (n > 0) body(0, n, 0);
    return;
  }
  g_pool.run(shares, [&](int64_t i, int thread) {
    body(blocks * i / shares * grain, std::min(n, blocks * (i + 1) / shares * grain), thread);
  });
}

}  // namespace vlcache
