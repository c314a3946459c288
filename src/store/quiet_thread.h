// start_quiet_thread starts the threads of this folder, in which all signals are blocked.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace vlcache {

// Signals are for the threads that expect them; with SIGXFSZ blocked, a write beyond `ulimit -f` is an error like any
// other.
template <typename Work>
std::thread start_quiet_thread(Work work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace vlcache
