/* Preloaded into the program by test_signals.py: SIGUSR1 for every thread of the process, every 5 ms, and a handler for
 * it as a profiler or an embedder may have one.
 *   default           without SA_ONSTACK, so its frame lies below the stack pointer of what it interrupts
 *   SIGNALS_WATCH=FILE  notes instead how often the stack pointer was outside of the thread's stack: "N of M" and the
 *                     addresses of the code, written to FILE.PID at the end */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

extern void *__libc_stack_end;
static volatile int n_signals, n_outside;
static volatile uintptr_t codes[64];
static const char *watch_file;

static void count(int signal) {
  (void)signal;
  __atomic_fetch_add(&n_signals, 1, __ATOMIC_RELAXED);
}

#if defined(__x86_64__)
/* The main thread's stack ends where the program begins; that of another thread lies directly below its control block. */
static void watch(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uintptr_t at = (uintptr_t)registers[REG_RSP];
  uintptr_t end = (uintptr_t)__libc_stack_end + (1 << 20);
  if (syscall(SYS_gettid) != getpid()) __asm__("mov %%fs:0, %0" : "=r"(end));
  __atomic_fetch_add(&n_signals, 1, __ATOMIC_RELAXED);
  if (at <= end && end - at < (10u << 20)) return;
  const int n = __atomic_fetch_add(&n_outside, 1, __ATOMIC_RELAXED);
  if (n < 64) codes[n] = (uintptr_t)registers[REG_RIP];
}
#endif

static void *send(void *nothing) {
  const pid_t process = getpid(), self = (pid_t)syscall(SYS_gettid);
  const struct timespec pause = {0, 5000000};
  for (;;) {
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
      const pid_t thread = atoi(entry->d_name);
      if (thread > 0 && thread != self) syscall(SYS_tgkill, process, thread, SIGUSR1);
    }
    if (threads != NULL) closedir(threads);
    nanosleep(&pause, NULL);
  }
  return nothing;
}

__attribute__((constructor)) static void begin(void) {
  sigset_t all, before;
  pthread_t thread;
  struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
  watch_file = getenv("SIGNALS_WATCH");
#if defined(__x86_64__)
  if (watch_file != NULL) {
    action.sa_sigaction = watch;
    action.sa_flags |= SA_SIGINFO | SA_ONSTACK;
  }
#endif
  sigaction(SIGUSR1, &action, NULL);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_create(&thread, NULL, send, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((destructor)) static void end(void) {
  char name[4096];
  if (watch_file == NULL) return;
  snprintf(name, sizeof name, "%s.%d", watch_file, (int)getpid());
  FILE *file = fopen(name, "w");
  if (file == NULL) return;
  fprintf(file, "%d of %d\n", n_outside, n_signals);
  for (int i = 0; i < n_outside && i < 64; ++i) fprintf(file, "%lx\n", (unsigned long)codes[i]);
  fclose(file);
}
