// Sandbox: the rules that keep a helper program from all that it has no use for, and how much of it works on this
// machine.
#pragma once

#include <functional>
#include <string>

namespace vlcache {

struct ProcessOutcome;

// The parts of the sandbox of a helper program (base/os/limited_process.h).
struct Sandbox {
  bool system_calls = true;  // base/os/system_call_filter.h
  bool files = true;         // base/os/file_rules.h

  bool operator==(const Sandbox&) const = default;
};

struct SandboxChoice {
  Sandbox sandbox;
  std::string left_out;  // one line: which part is missing, what that means and why; empty: none is
};

// The strictest sandbox under which `probe`, which runs a program, has the same outcome as without one. A part that the
// kernel lacks, a container forbids or an odd installation does not bear is left out. Where the program fails without a
// sandbox as well, that is not the sandbox's fault: all that the kernel has is kept.
//   programs: begins the line: "the programs that read PDFs".
SandboxChoice choose_sandbox(const std::string& programs, const std::function<ProcessOutcome(const Sandbox&)>& probe);

// The same, and its line is written to standard error as a warning.
Sandbox choose_sandbox_aloud(const std::string& programs, const std::function<ProcessOutcome(const Sandbox&)>& probe);

}  // namespace vlcache
