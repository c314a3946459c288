// Handlers run on the thread's alternate stack, whatever the stack pointer of the code that they interrupt.
#include "base/os/signals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/os/shared_mapping.h"
#include "base/os/threads.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

stack_t present_stack() {
  stack_t present{};
  EXPECT_EQ(sigaltstack(nullptr, &present), 0);
  return present;
}

bool has_stack() { return (present_stack().ss_flags & SS_DISABLE) == 0; }

// Removes the stack that a sanitizer gives each thread, until the end of the scope.
class WithoutStack {
 public:
  WithoutStack() {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    EXPECT_EQ(sigaltstack(&none, &before_), 0);
  }
  ~WithoutStack() { sigaltstack(&before_, nullptr); }
  WithoutStack(const WithoutStack&) = delete;
  WithoutStack& operator=(const WithoutStack&) = delete;

 private:
  stack_t before_{};
};

// Whether memory is mapped at the address.
bool is_mapped(const void* at) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) / page * page), 1, &resident) == 0;
}

TEST(SignalStack, AThreadGetsOneOfAtLeast64KiBWhichEndsWithIt) {
  const void* at = nullptr;
  std::thread([&] {
    const WithoutStack without;
    ensure_signal_stack();
    ASSERT_TRUE(has_stack());
    const stack_t first = present_stack();
    EXPECT_GE(first.ss_size, size_t{64} << 10);
    EXPECT_GE(first.ss_size, static_cast<size_t>(sysconf(_SC_SIGSTKSZ)));
    ensure_signal_stack();
    EXPECT_EQ(present_stack().ss_sp, first.ss_sp);
    at = first.ss_sp;
    EXPECT_TRUE(is_mapped(at));
  }).join();
  EXPECT_FALSE(is_mapped(at));
}

TEST(SignalStack, OneThatIsThereStays) {
  std::thread([] {
    std::vector<char> memory(128 << 10);
    stack_t own{}, before{};
    own.ss_sp = memory.data();
    own.ss_size = memory.size();
    ASSERT_EQ(sigaltstack(&own, &before), 0);
    ensure_signal_stack();
    EXPECT_EQ(present_stack().ss_sp, memory.data());
    EXPECT_EQ(present_stack().ss_size, memory.size());
    sigaltstack(&before, nullptr);
  }).join();
}

TEST(SignalStack, ThreadsOfThePoolHaveOne) {
  set_threads(3);
  std::atomic<int> begun{0}, n_with{0};
  parallel_for(3, [&](int64_t, int thread) {
    ++begun;
    while (begun < 3) std::this_thread::yield();  // each thread takes one
    n_with += thread > 0 && has_stack() ? 1 : 0;
  });
  EXPECT_EQ(n_with, 2);
  set_threads(2);
}

std::atomic<uintptr_t> g_handled_at{0};
void note_where(int) { g_handled_at = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }

// What read() of an empty pipe returns to a thread that gets signals; 1: a byte came after some of them.
ssize_t read_under_signals(bool restarts) {
  const struct sigaction before = handle_signal(SIGUSR2, note_where, restarts);
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  std::atomic<bool> reads{false}, over{false};
  ssize_t n = 0;
  g_handled_at = 0;
  std::thread reader([&] {
    ensure_signal_stack();
    const stack_t own = present_stack();
    char byte = 0;
    reads = true;
    n = read(ends[0], &byte, 1);
    if (n < 0 && errno != EINTR) n = -errno;
    const auto begin = reinterpret_cast<uintptr_t>(own.ss_sp);
    EXPECT_GE(g_handled_at, begin);
    EXPECT_LT(g_handled_at, begin + own.ss_size);
    over = true;
  });
  while (!reads) std::this_thread::yield();
  // Enough that one comes while it reads.
  for (int i = 0; !over && i < (restarts ? 10 : 10'000); ++i) {
    pthread_kill(reader.native_handle(), SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(write(ends[1], "x", 1), 1);  // which ends a call that was restarted
  reader.join();
  sigaction(SIGUSR2, &before, nullptr);
  for (const int end : ends) close(end);
  return n;
}

TEST(HandleSignal, RunsOnTheAlternateStackAndRestartsCallsWhereAsked) {
  EXPECT_EQ(read_under_signals(/*restarts=*/true), 1);
  EXPECT_EQ(read_under_signals(/*restarts=*/false), -1);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
// Reads a byte while the stack pointer points to where nothing can be written.
[[gnu::noinline]] int read_without_a_stack(const std::byte* at, const void* nowhere) {
  uint64_t value = 0;
  asm volatile(
      "mov %%rsp, %%r12\n"
      "mov %[nowhere], %%rsp\n"
      "movzbl (%[at]), %k[value]\n"
      "mov %%r12, %%rsp\n"
      : [value] "=&r"(value)
      : [at] "r"(at), [nowhere] "r"(nowhere)
      : "r12", "memory");
  return static_cast<int>(value);
}

// Cuts a mapped file and reads the missing part: in the thread that has mapped it, or in the pool's.
void read_what_was_cut(bool in_the_pool) {
  const fs::path path = fs::temp_directory_path() / ("vlcache-cut-" + std::to_string(getpid()));
  std::ofstream(path) << std::string(3 << 20, 'x');
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  fs::remove(path);
  const SharedMapping mapping(file, 3 << 20, "the file was cut");
  const std::byte* const at = mapping.bytes().data() + (2 << 20);
  const File writer(open(("/proc/self/fd/" + std::to_string(file.fd())).c_str(), O_RDWR | O_CLOEXEC));
  if (ftruncate(writer.fd(), 4096) != 0) std::exit(3);
  const void* const nowhere = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto read = [&] { return read_without_a_stack(at, static_cast<const std::byte*>(nowhere) + 4096); };
  if (!in_the_pool) std::exit(read() & 1);
  set_threads(2);
  std::atomic<bool> came{false};
  parallel_for(2, [&](int64_t, int thread) {
    if (thread == 1) read();
    while (!came) std::this_thread::yield();
  });
  std::exit(4);
}

TEST(SharedMappingDeathTest, AFileThatIsCutEndsTheProcessWhateverTheStackPointer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(read_what_was_cut(false), testing::ExitedWithCode(2), "^the file was cut\n$");
  EXPECT_EXIT(read_what_was_cut(true), testing::ExitedWithCode(2), "^the file was cut\n$");
}
#endif

}  // namespace
}  // namespace vlcache
