// Runs loops in parallel, and is the only way to do so: a pool of threads that sleep after a short wait, so that the
// program keeps its share of CPUs used by other processes too.
#pragma once

#include <cstdint>

#include "base/function_ref.h"

namespace vlcache {

// Threads of a loop, the one that starts it included; n >= 1. Must not be called during a loop. Default: usable_cpus().
// If the system grants fewer threads, these do all the work.
void set_threads(int n);
int n_threads();

// Runs task(i, thread) for i in [0, n), i handed out in order, one at a time; thread < n_threads(), and no two tasks
// with the same `thread` run at once. Returns when all are done: it waits for a thread only if that has begun a task. n
// == 1 or one thread: runs inline. Tasks must not throw, nor start loops of their own. The pool runs one loop at a
// time: a loop of a second thread runs inline, with `thread` 0, hence needs scratch of its own.
void parallel_for(int64_t n, FunctionRef<void(int64_t i, int thread)> task);

// Runs body(begin, end, thread) on equal shares of [0, n), as many as threads, cut at multiples of `grain`.
void parallel_ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

// While an object of this class lives, loops of the thread that created it run inline. For background threads, so that
// the computing thread finds the pool free.
class InlineLoops {
 public:
  InlineLoops();
  ~InlineLoops();
  InlineLoops(const InlineLoops&) = delete;
};

}  // namespace vlcache
