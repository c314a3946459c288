#include "base/os/sandbox.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

#include "base/os/file_rules.h"
#include "base/os/limited_process.h"
#include "base/os/system_call_filter.h"

namespace vlcache {
namespace {

constexpr size_t kMaxReason = 160;

// Why a program failed, on one line of printable ASCII.
std::string failure_of(const ProcessOutcome& outcome) {
  std::string_view words = outcome.errors;
  words = words.substr(0, std::min(words.find('\n'), kMaxReason));
  std::string text;
  for (const char c : words) text += c >= ' ' && c <= '~' ? c : '?';
  if (!text.empty()) return text;
  if (outcome.good()) return "the result is another one";
  return outcome.end == ProcessOutcome::End::kExited   ? "exit status " + std::to_string(outcome.code)
         : outcome.end == ProcessOutcome::End::kSignal ? "signal " + std::to_string(outcome.code)
                                                       : "it hangs";
}

std::string line_of(const std::string& programs, const Sandbox& sandbox, const std::string& reason) {
  if (sandbox == Sandbox{}) return "";
  const char* what = sandbox.system_calls ? "Landlock: a fault in them could read the user's files"
                     : sandbox.files      ? "a seccomp filter: a fault in them could start programs and connect"
                                     : "a seccomp filter and Landlock: a fault in them could do what the user may do";
  return programs + " run without " + what + " (" + reason + ")";
}

}  // namespace

SandboxChoice choose_sandbox(const std::string& programs, const std::function<ProcessOutcome(const Sandbox&)>& probe) {
  const auto outcome_of = [&](const Sandbox& sandbox) -> ProcessOutcome {
    try {
      return probe(sandbox);
    } catch (const std::exception& error) {
      return {.code = kNotStarted, .errors = error.what()};
    }
  };
  Sandbox most;
  std::string reason, failure;
  most.files = FileRules::version() > 0;
  if (!most.files) reason = "the kernel lacks it or a container forbids it";
  most.system_calls = SystemCallFilter::kKnown;
  if (!most.system_calls) reason += std::string(reason.empty() ? "" : "; ") + "no filter is known for this processor";
  const auto choice = [&](const Sandbox& sandbox) -> SandboxChoice {
    const char* between = reason.empty() || failure.empty() ? "" : "; ";
    return {sandbox, line_of(programs, sandbox, reason + between + failure)};
  };
  const ProcessOutcome plain = outcome_of({.system_calls = false, .files = false});
  if (!plain.good()) return choice(most);
  for (const Sandbox& sandbox : {Sandbox{true, true}, Sandbox{true, false}, Sandbox{false, true}}) {
    if ((sandbox.system_calls && !most.system_calls) || (sandbox.files && !most.files)) continue;
    const ProcessOutcome outcome = outcome_of(sandbox);
    if (outcome.good() && outcome.output == plain.output) return choice(sandbox);
    failure = failure_of(outcome);
  }
  return choice({.system_calls = false, .files = false});
}

Sandbox choose_sandbox_aloud(const std::string& programs, const std::function<ProcessOutcome(const Sandbox&)>& probe) {
  const SandboxChoice choice = choose_sandbox(programs, probe);
  if (!choice.left_out.empty()) std::fprintf(stderr, "vlcache: warning: %s\n", choice.left_out.c_str());
  return choice.sandbox;
}

}  // namespace vlcache
