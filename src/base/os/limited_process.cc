#include "base/os/limited_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/file_rules.h"
#include "base/os/system_call_filter.h"

namespace vlcache {
namespace {

constexpr size_t kMaxErrors = 64 << 10;
constexpr int kFirstOwnFd = 10;  // of descriptors here: dup2 to 0 to 3 in the child overwrites none of them
constexpr int kInputFd = 3;      // of kHelperInput
constexpr std::chrono::milliseconds kLook{50};  // between two questions whether to continue
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

[[noreturn]] void fail_system(const std::string& what) {
  throw Error(ErrorCode::kIo, what + ": " + std::strerror(errno));
}

// A descriptor that no exec inherits.
class OwnFd {
 public:
  // Becomes the owner of `fd`, which is moved out of the way of a child's own ones.
  explicit OwnFd(int fd) : fd_(fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, kFirstOwnFd)) {
    if (fd >= 0) ::close(fd);
    if (fd_ < 0) fail_system("starting a helper program");
  }
  OwnFd(OwnFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnFd& operator=(OwnFd&&) = delete;
  ~OwnFd() { close(); }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

struct Pipe {
  OwnFd read, write;
};

Pipe make_pipe() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) fail_system("starting a helper program");
  return {OwnFd(ends[0]), OwnFd(ends[1])};
}

// All that the child needs, made before it exists.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int fds[kInputFd + 1];  // its descriptors 0 to 3
  rlim_t cpu_s, memory_bytes;
  int file_rules;            // -1: none
  SystemCallFilter* filter;  // null: none. The child changes it; the parent waits and has no other use for it
};

constexpr std::string_view kNoFileRules = "the kernel refuses Landlock rules\n",
                           kNoFilter = "the kernel refuses a seccomp filter\n";

[[noreturn]] void end_child(std::string_view why) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, why.data(), why.size());
  _exit(kNotStarted);
}

void limit(int resource, rlim_t most) {
  const rlimit both{most, most};
  setrlimit(static_cast<__rlimit_resource_t>(resource), &both);
}

// What a child does until it is another program. After vfork it shares the parent's memory: system calls alone.
[[noreturn]] void become(const ChildPlan& plan) {
  setsid();  // a process group of its own, which Ctrl-C does not reach
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  for (int fd = 0; fd <= kInputFd; ++fd) {
    if (dup2(plan.fds[fd], fd) < 0) _exit(kNotStarted);
  }
  if (plan.file_rules >= 0 && !FileRules::apply(plan.file_rules)) end_child(kNoFileRules);
  // Sockets of a server are not all closed by exec.
  if (syscall(SYS_close_range, static_cast<unsigned>(kInputFd + 1), ~0U, 0U) != 0) {
    for (int fd = kInputFd + 1; fd < 65536; ++fd) close(fd);
  }
  if (chdir("/") != 0) _exit(kNotStarted);
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // writing a file fails instead
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NOFILE, 64);
  limit(RLIMIT_CPU, plan.cpu_s);
  limit(RLIMIT_AS, plan.memory_bytes);
  if (plan.filter != nullptr && !plan.filter->apply()) end_child(kNoFilter);  // last: it refuses the above
  execve(plan.program, plan.arguments, plan.environment);
  _exit(kNotStarted);
}

// vfork, because fork would copy the page tables of a process with gigabytes of weights.
pid_t start(const ChildPlan& plan) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // no handler of this process runs in the child
  const pid_t pid = vfork();
  if (pid == 0) become(plan);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  // Ends the process group, also what the child started and left, while its number cannot be another's.
  ~Child() {
    kill(-pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  // Whether it has ended, and how.
  bool ended(ProcessOutcome& outcome) const {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
      return false;
    }
    outcome.end = info.si_code == CLD_EXITED ? ProcessOutcome::End::kExited : ProcessOutcome::End::kSignal;
    outcome.code = info.si_status;
    return true;
  }

 private:
  pid_t pid_;
};

// Reads the output that has arrived. Returns false at the end.
template <typename Take>
bool read_some(const OwnFd& fd, const Take& take) {
  std::array<std::byte, 64 << 10> piece;
  const ssize_t n = read(fd.get(), piece.data(), piece.size());
  if (n > 0) take(std::span(piece).first(static_cast<size_t>(n)));
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

// Reads both pipes until the helper has ended, or must end.
void follow(const Child& child, OwnFd& out, OwnFd& err, const ProcessLimits& limits, const ProcessCalls& calls,
            ProcessOutcome& outcome) {
  Clock::time_point deadline = Clock::now() + limits.time;
  int64_t n_output = 0;
  const auto add_output = [&](std::span<const std::byte> piece) {
    n_output += std::ssize(piece);
    if (!calls.take) {
      outcome.output.insert(outcome.output.end(), piece.begin(), piece.end());
    } else if (n_output <= limits.output_bytes) {
      const Clock::time_point before = Clock::now();
      calls.take(piece);
      deadline += Clock::now() - before;
    }
  };
  const auto add_errors = [&](std::span<const std::byte> piece) {
    const size_t room = kMaxErrors - std::min(kMaxErrors, outcome.errors.size());
    outcome.errors.append(reinterpret_cast<const char*>(piece.data()), std::min(room, piece.size()));
  };
  bool out_open = true, err_open = true;
  while (true) {
    if (calls.cancelled && calls.cancelled()) {
      outcome.end = ProcessOutcome::End::kCancelled;
      return;
    }
    if (Clock::now() >= deadline) {
      outcome.end = ProcessOutcome::End::kLate;
      return;
    }
    if (!out_open && !err_open) {
      if (child.ended(outcome)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    pollfd fds[2] = {{out_open ? out.get() : -1, POLLIN, 0}, {err_open ? err.get() : -1, POLLIN, 0}};
    if (poll(fds, 2, static_cast<int>(kLook.count())) <= 0) continue;
    if (fds[0].revents != 0) out_open = read_some(out, add_output);
    if (fds[1].revents != 0) err_open = read_some(err, add_errors);
    if (n_output > limits.output_bytes) {
      outcome.end = ProcessOutcome::End::kTooMuch;
      return;
    }
  }
}

}  // namespace

MemoryFile::MemoryFile(std::span<const std::byte> bytes)
    : fd_(memfd_create("vlcache", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (fd_ < 0) fail_system("a file in memory");
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      close(fd_);
      fail_system("a file in memory");
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

MemoryFile::~MemoryFile() { close(fd_); }

std::optional<std::filesystem::path> find_program(std::string_view name) {
  const char* variable = std::getenv("PATH");
  std::string_view folders = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  while (!folders.empty()) {
    const std::string_view folder = folders.substr(0, folders.find(':'));
    folders.remove_prefix(std::min(folders.size(), folder.size() + 1));
    if (!folder.starts_with('/')) continue;
    std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

ProcessOutcome run_limited(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                           const MemoryFile& input, const ProcessLimits& limits, const ProcessCalls& calls) {
  std::vector<std::string> texts{program.string()};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  std::string path = "PATH=/usr/local/bin:/usr/bin:/bin", locale = "LC_ALL=C.UTF-8", home = "HOME=/nonexistent";
  // A sanitized helper would look for leaks by ptrace in a process of its own, which the filter refuses.
  std::string leaks = "ASAN_OPTIONS=detect_leaks=0";
  char* environment[] = {path.data(), locale.data(), home.data(), kSanitized ? leaks.data() : nullptr, nullptr};

  const OwnFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const OwnFd file(fcntl(input.fd(), F_DUPFD_CLOEXEC, kFirstOwnFd));
  Pipe out = make_pipe(), err = make_pipe();
  std::optional<FileRules> rules;
  std::optional<OwnFd> rules_fd;
  if (limits.sandbox.files) {
    rules.emplace(program);
    rules_fd.emplace(fcntl(rules->fd(), F_DUPFD_CLOEXEC, kFirstOwnFd));
  }
  std::optional<SystemCallFilter> filter;
  if (limits.sandbox.system_calls) filter.emplace();
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(limits.time).count() * limits.threads;
  const ChildPlan plan{.program = texts[0].c_str(),
                       .arguments = pointers.data(),
                       .environment = environment,
                       .fds = {nothing.get(), out.write.get(), err.write.get(), file.get()},
                       .cpu_s = static_cast<rlim_t>(seconds) + 1,
                       .memory_bytes = static_cast<rlim_t>(limits.memory_bytes),
                       .file_rules = rules_fd ? rules_fd->get() : -1,
                       .filter = filter ? &*filter : nullptr};
  const pid_t pid = start(plan);
  if (pid < 0) fail_system("starting " + texts[0]);
  const Child child(pid);
  out.write.close();
  err.write.close();
  ProcessOutcome outcome;
  follow(child, out.read, err.read, limits, calls, outcome);
  return outcome;
}

}  // namespace vlcache
