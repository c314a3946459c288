#include "base/os/signals.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace vlcache {
namespace {

// Handlers are small; what the kernel saves of the registers is not: 11 KB with AMX. _SC_SIGSTKSZ is several times that
// on the machine at hand, and more on machines with larger registers.
size_t stack_bytes() {
  constexpr long kLeast = 64 << 10;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (static_cast<size_t>(std::max(sysconf(_SC_SIGSTKSZ), kLeast)) + page - 1) / page * page;
}

// A thread's alternate stack: a mapping of its own, above a page without access, so that an overflow faults instead
// of writing elsewhere.
class SignalStack {
 public:
  SignalStack() {
    stack_t present{};
    if (sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
    guard_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = guard_ + stack_bytes();
    void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (mapped == MAP_FAILED) return;
    mprotect(mapped, guard_, PROT_NONE);
    stack_t own{};
    own.ss_sp = static_cast<std::byte*>(mapped) + guard_;
    own.ss_size = bytes_ - guard_;
    if (sigaltstack(&own, nullptr) == 0) {
      data_ = mapped;
    } else {
      munmap(mapped, bytes_);
    }
  }

  // Another stack may have taken the place of this one in the meantime: that one stays.
  ~SignalStack() {
    if (data_ == nullptr) return;
    stack_t present{};
    if (sigaltstack(nullptr, &present) != 0) return;
    if (present.ss_sp == static_cast<std::byte*>(data_) + guard_) {
      stack_t none{};
      none.ss_flags = SS_DISABLE;
      if (sigaltstack(&none, nullptr) != 0) return;  // a handler runs on it, and has ended the thread or the process
    }
    munmap(data_, bytes_);
  }

  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0, guard_ = 0;
};

}  // namespace

struct sigaction handle_signal(int signal, void (*handler)(int), bool restarts) {
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK | (restarts ? SA_RESTART : 0);
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, &before);
  return before;
}

void ensure_signal_stack() { static thread_local const SignalStack stack; }

}  // namespace vlcache
