#include "base/os/shared_mapping.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "base/error.h"
#include "base/os/signals.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace vlcache {
namespace {

constexpr size_t kAlignment = 2 << 20;

// The longest last line: a path (PATH_MAX) and some sentences. A longer one is cut.
constexpr size_t kLongestLine = 5120;

// What the handler knows of a mapping; it reads nothing of the heap, which may be what the signal found damaged.
// Written under g_changing; `begin` is set last and cleared first.
struct Watched {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::array<char, kLongestLine> last_line;
  size_t n_line = 0;
};
std::array<Watched, 64> g_watched;
std::mutex g_changing;
struct sigaction g_before = {};  // of SIGBUS

// Ends the process if the signal is of a mapping; else the former handler decides. Calls only functions that are
// async-signal-safe.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;  // else it was sent, and has no address
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Watched& mapping : g_watched) {
    const uintptr_t begin = mapping.begin;
    if (!is_fault || begin == 0 || address < begin || address >= mapping.end) continue;
    static std::atomic_flag said = ATOMIC_FLAG_INIT;
    while (said.test_and_set()) pause();  // another thread says it
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, mapping.last_line.data(), mapping.n_line);
    _exit(2);
  }
  if ((g_before.sa_flags & SA_SIGINFO) != 0) return g_before.sa_sigaction(signal, info, context);
  if (g_before.sa_handler == SIG_IGN && !is_fault) return;
  if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) return g_before.sa_handler(signal);
  sigaction(SIGBUS, &g_before, nullptr);
  if (!is_fault) raise(SIGBUS);  // a fault happens again by itself
}

void watch(uintptr_t begin, uintptr_t end, const std::string& last_line) {
  ensure_signal_stack();  // of the thread that is about to read the mapping
  const std::lock_guard lock(g_changing);
  static bool installed = false;
  if (!installed) {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    installed = sigaction(SIGBUS, &action, &g_before) == 0;
  }
  for (Watched& mapping : g_watched) {
    if (mapping.begin != 0) continue;
    mapping.end = end;
    mapping.n_line = std::min(last_line.size(), kLongestLine - 1);
    std::copy_n(last_line.data(), mapping.n_line, mapping.last_line.data());
    mapping.last_line[mapping.n_line++] = '\n';
    mapping.begin = begin;
    return;
  }
  throw Error(ErrorCode::kUnsupported, std::to_string(g_watched.size()) + " files are mapped already");
}

void unwatch(uintptr_t begin) {
  const std::lock_guard lock(g_changing);
  for (Watched& mapping : g_watched) {
    if (mapping.begin == begin) mapping.begin = 0;
  }
}

// Maps the file where its huge pages can be the process's: at a multiple of their size.
std::byte* map_aligned(const File& file, size_t bytes) {
  void* const room = mmap(nullptr, bytes + kAlignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(room);
  const uintptr_t begin = (first + kAlignment - 1) / kAlignment * kAlignment;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t end = (begin + bytes + page - 1) / page * page;
  void* const mapped = mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file.fd(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(room, bytes + kAlignment);
    errno = error;
    return nullptr;
  }
  if (begin > first) munmap(room, begin - first);
  const uintptr_t room_end = (first + bytes + kAlignment + page - 1) / page * page;
  if (room_end > end) munmap(reinterpret_cast<void*>(end), room_end - end);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

SharedMapping::SharedMapping(const File& file, int64_t bytes, const std::string& last_line)
    : bytes_(static_cast<size_t>(bytes)) {
  CHECK(bytes > 0);
  data_ = map_aligned(file, bytes_);
  if (data_ == nullptr) throw Error(ErrorCode::kUnsupported, errno_text("cannot be mapped"));
  madvise(data_, bytes_, MADV_HUGEPAGE);  // refused where the kernel has none
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  try {
    watch(begin, begin + bytes_, last_line);
  } catch (const Error&) {
    munmap(data_, bytes_);
    throw;
  }
}

SharedMapping::~SharedMapping() {
  unwatch(reinterpret_cast<uintptr_t>(data_));
  munmap(data_, bytes_);
}

int SharedMapping::populate(int64_t begin, int64_t end) const {
  const auto fill = [&] { return madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_POPULATE_READ); };
  return retried(fill) != 0 && (errno == EFAULT || errno == EHWPOISON) ? EIO : 0;
}

}  // namespace vlcache
