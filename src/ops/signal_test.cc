// Where the stack pointer is while the ops compute: a handler without SA_ONSTACK, as a profiler or an embedder may have
// one, writes its frame below it, so it must lie in the thread's own stack.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/os/threads.h"
#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_cases.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

// Written by the computing thread before the timer starts, then by its handler.
struct Watch {
  uintptr_t stack_begin = 0, stack_end = 0;
  volatile int n_signals = 0, n_outside = 0;
};
Watch g_watch;

void note_stack_pointer(int, siginfo_t*, void* context) {
#if defined(__x86_64__)
  const auto at = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
#else
  const auto at = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.sp);
#endif
  g_watch.n_signals = g_watch.n_signals + 1;
  if (at < g_watch.stack_begin || at >= g_watch.stack_end) g_watch.n_outside = g_watch.n_outside + 1;
}

// While it lives, the calling thread gets SIGUSR1 every millisecond, on an alternate stack.
class SignalsEveryMillisecond {
 public:
  SignalsEveryMillisecond() {
    g_watch.n_signals = 0;
    g_watch.n_outside = 0;
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
    g_watch.stack_begin = reinterpret_cast<uintptr_t>(begin);
    g_watch.stack_end = g_watch.stack_begin + bytes;
    stack_t own{};
    own.ss_sp = stack_.data();
    own.ss_size = stack_.size();
    EXPECT_EQ(sigaltstack(&own, &stack_before_), 0);
    struct sigaction action {};
    action.sa_sigaction = note_stack_pointer;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    EXPECT_EQ(sigaction(SIGUSR1, &action, &action_before_), 0);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    EXPECT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer_), 0);
    const timespec millisecond{0, 1'000'000};
    const itimerspec times{millisecond, millisecond};
    EXPECT_EQ(timer_settime(timer_, 0, &times, nullptr), 0);
  }
  ~SignalsEveryMillisecond() {
    timer_delete(timer_);
    sigaction(SIGUSR1, &action_before_, nullptr);  // no signal is pending: they go to this thread, which has run
    sigaltstack(&stack_before_, nullptr);
  }
  SignalsEveryMillisecond(const SignalsEveryMillisecond&) = delete;
  SignalsEveryMillisecond& operator=(const SignalsEveryMillisecond&) = delete;

 private:
  std::vector<char> stack_ = std::vector<char>(256 << 10);
  stack_t stack_before_{};
  struct sigaction action_before_ {};
  timer_t timer_{};
};

// A product of a prompt's rows.
OpCase many_rows() {
  const auto prepare = [](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor x = make.input({300, 512});
    const Weight& w = make.packed({1024}, 512);
    const Tensor y = make.output("y", {300, 1024});
    op.run = [&backend = setup.backend, &w, x, y] { backend.matmul(x, w, y); };
  };
  return {.op = "matmul", .shape = "n=300 512->1024", .prepare = prepare};
}

// Of the cases of the op in the table, whose shapes contain `with`, the one with the most work.
OpCase heaviest(const std::string& op, const std::string& with) {
  OpCase found;
  for (OpCase& one : op_cases()) {
    if (one.op == op && one.shape.find(with) != std::string::npos && one.flops >= found.flops) found = std::move(one);
  }
  return found;
}

constexpr int kSignals = 200;
constexpr std::chrono::seconds kLongest{60};  // for them: some tenths of a second, unless the machine is very busy

void compute_under_signals(const OpCase& one, Backend& backend) {
  PreparedOp op;
  one.prepare({.backend = backend, .values = backend.compute_dtype(), .seed = 1}, op);
  const auto by = std::chrono::steady_clock::now() + kLongest;
  {
    const SignalsEveryMillisecond signals;
    while (g_watch.n_signals < kSignals && std::chrono::steady_clock::now() < by) op.run();
  }
  EXPECT_GE(g_watch.n_signals, kSignals);
  EXPECT_EQ(g_watch.n_outside, 0) << "of " << g_watch.n_signals << " signals found the stack pointer elsewhere";
}

TEST(Signals, FindTheStackPointerInTheThreadsStack) {
  if (std::ranges::count(backend_names(), "cpu") == 0) GTEST_SKIP() << "built with ops/ref alone";
  const int n_before = n_threads();
  set_threads(1);  // the thread that gets the signals computes everything
  std::vector<std::string_view> isas = lower_instruction_sets("cpu");
  isas.insert(isas.begin(), "auto");
  const std::vector<OpCase> cases = {many_rows(), heaviest("matmul", "int4"), heaviest("attention", ""),
                                     heaviest("dense_attention", "")};
  // In a thread of its own: the bounds of the main thread's stack are the limit's, which may be none.
  std::thread([&] {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::string_view isa : isas) {
        const auto backend = make_backend("cpu", dtype, {.max_isa = isa});
        for (const OpCase& one : cases) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::string(isa) + ": " + one.name());
          ASSERT_FALSE(one.op.empty());
          compute_under_signals(one, *backend);
        }
      }
    }
  }).join();
  set_threads(n_before);
}

}  // namespace
}  // namespace vlcache
