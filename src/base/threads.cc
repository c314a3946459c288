// Parallel loops on OpenMP or on std::thread.
#include "base/threads.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"

#ifdef VLCACHE_STD_THREADS
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace vlcache {

#ifdef VLCACHE_STD_THREADS

namespace {
std::atomic<int> g_threads{2};

void run_team(int n, FunctionRef<void(int)> body) {
  std::vector<std::jthread> team;
  for (int t = 1; t < n; ++t) team.emplace_back([body, t] { body(t); });
  body(0);
}
}  // namespace

void set_threads(int n) {
  CHECK(n >= 1);
  g_threads = n;
}
int n_threads() { return g_threads; }

#else

namespace {
// Always the whole team, with work for the first n: libgomp ends threads when a team shrinks, and starts them anew. A
// team may still be smaller than asked; its threads then do the others' shares.
void run_team(int n, FunctionRef<void(int)> body) {
  CHECK(!omp_in_parallel());
#pragma omp parallel
  for (int thread = omp_get_thread_num(); thread < n; thread += omp_get_num_threads()) body(thread);
}
}  // namespace

void set_threads(int n) {
  CHECK(n >= 1);
  // oneDNN computes half a product where the team is smaller than it thinks.
  omp_set_num_threads(std::min(n, omp_get_thread_limit()));
  omp_set_dynamic(0);
}
int n_threads() { return omp_get_max_threads(); }

#endif

void parallel_for(int64_t n, FunctionRef<void(int64_t, int)> task) {
  const int team = static_cast<int>(std::min<int64_t>(n_threads(), n));
  if (team <= 1) {
    for (int64_t i = 0; i < n; ++i) task(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  run_team(team, [&](int thread) {
    for (int64_t i = next++; i < n; i = next++) task(i, thread);
  });
}

void parallel_ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> body) {
  CHECK(grain >= 1);
  const int64_t blocks = (n + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(n_threads(), blocks));
  if (team <= 1) {
    if (n > 0) body(0, n, 0);
    return;
  }
  run_team(team, [&](int thread) {
    const int64_t begin = blocks * thread / team * grain;
    const int64_t end = std::min(n, blocks * (thread + 1) / team * grain);
    if (begin < end) body(begin, end, thread);
  });
}

}  // namespace vlcache
