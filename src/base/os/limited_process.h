// Runs helper programs on data that is not trusted: without a shell, with a minimal environment, under limits of time,
// memory and output, and in a sandbox. A fault in the helper, or a file made to cause one, ends the helper alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/sandbox.h"

namespace vlcache {

// A read-only file that exists in memory alone, so that nothing has to be removed however a process ends.
class MemoryFile {
 public:
  // Copies the bytes. Throws Error(kIo) if the system has no memory for them.
  explicit MemoryFile(std::span<const std::byte> bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// The path under which a helper finds its MemoryFile.
inline constexpr const char* kHelperInput = "/proc/self/fd/3";

struct ProcessLimits {
  std::chrono::milliseconds time{20'000};   // from its start to its end, and of processor time
  int64_t memory_bytes = int64_t{1} << 30;  // of address space
  int64_t output_bytes = int64_t{32} << 20;
  int32_t threads = 1;  // that compute at the same time: processor time is limited to `time` for each
  Sandbox sandbox;      // all of it, unless choose_sandbox has found that less works here
};

// What run_limited calls while a helper runs; either may be empty. What they throw ends the helper and is passed on.
struct ProcessCalls {
  std::function<bool()> cancelled;  // about 20 times a second; true ends the helper
  // Receives the next bytes of standard output, which ProcessOutcome::output then has none of. The helper waits
  // meanwhile; that time is not its own.
  std::function<void(std::span<const std::byte>)> take;
};

// ProcessOutcome::code of a program that could not be started.
inline constexpr int kNotStarted = 127;

struct ProcessOutcome {
  enum class End : uint8_t {
    kExited,     // code: its exit status, or kNotStarted
    kSignal,     // code: the signal that ended it
    kLate,       // killed at the time limit
    kTooMuch,    // killed because it wrote more than output_bytes
    kCancelled,  // killed because `cancelled` said so
  };
  End end = End::kExited;
  int code = 0;
  std::vector<std::byte> output;  // standard output
  std::string errors;             // standard error, its first 64 KiB

  bool good() const { return end == End::kExited && code == 0; }
};

// The absolute path of a program in one of the folders of PATH; nullopt: it is not installed.
std::optional<std::filesystem::path> find_program(std::string_view name);

// Runs a program to its end or to a limit; its process group is dead when this returns. It can write no file and leave
// no core, and dies with the thread that waits for it. `cancelled` is called about 20 times a second. Where the kernel
// refuses the sandbox, the program is not started: kNotStarted, and `errors` says why. Throws Error(kIo) if no process
// can be started, or the kernel has no Landlock and its rules are asked for. Any thread.
ProcessOutcome run_limited(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                           const MemoryFile& input, const ProcessLimits& limits, const ProcessCalls& calls = {});

}  // namespace vlcache
