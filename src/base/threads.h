// The only way to run a loop in parallel: OpenMP's pool, shared with oneDNN; std::thread where OpenMP cannot be
// instrumented (TSan).
#pragma once

#include <cstdint>

#include "base/function_ref.h"

namespace vlcache {

// Threads that parallel loops and oneDNN use, at most what OMP_THREAD_LIMIT allows; n >= 1. Call once, before work
// starts, on the thread that will start it.
void set_threads(int n);
int n_threads();

// Runs task(i, thread) for i in [0, n), i handed out dynamically one at a time; thread < n_threads(). Returns when all
// are done. n == 1 or one thread: runs inline. Tasks must not throw, nor start loops of their own.
void parallel_for(int64_t n, FunctionRef<void(int64_t i, int thread)> task);

// Runs body(begin, end, thread) on each thread's equal share of [0, n), cut at multiples of `grain`.
void parallel_ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

}  // namespace vlcache
