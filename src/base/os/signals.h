// Handlers of signals, and the stacks that they run on. A handler runs on the thread's alternate stack if the thread
// has one, so it needs nothing of the stack, or of the stack pointer, of the code that it interrupts.
#pragma once

#include <signal.h>

namespace vlcache {

// Installs a handler, for all threads; returns the former one. restarts: system calls that the signal interrupts
// are restarted where Linux can; else they fail with EINTR.
struct sigaction handle_signal(int signal, void (*handler)(int), bool restarts);

// Gives the calling thread an alternate stack, freed when the thread ends. A stack that the thread has already, a
// sanitizer's or an embedder's, stays. Without memory for a stack the thread has none, and handlers run as they would
// without this call. Later calls of the same thread cost a look at a flag.
void ensure_signal_stack();

}  // namespace vlcache
