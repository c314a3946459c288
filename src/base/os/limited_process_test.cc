#include "base/os/limited_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/clock.h"

namespace vlcache {
namespace {

using End = ProcessOutcome::End;

// Without a sandbox: a shell starts other programs.
ProcessOutcome run_shell(const std::string& script, ProcessLimits limits = {}, const ProcessCalls& calls = {},
                         std::string_view input = "") {
  limits.sandbox = {.system_calls = false, .files = false};
  const MemoryFile file(std::as_bytes(std::span(input)));
  return run_limited(*find_program("sh"), {"-c", script}, file, limits, calls);
}

std::string output_of(const ProcessOutcome& outcome) {
  return {reinterpret_cast<const char*>(outcome.output.data()), outcome.output.size()};
}

TEST(LimitedProcess, GivesOutputErrorsAndStatus) {
  const ProcessOutcome outcome = run_shell("cat /proc/self/fd/3; echo bad >&2; exit 7", {}, {}, "input");
  EXPECT_EQ(output_of(outcome), "input");
  EXPECT_EQ(outcome.errors, "bad\n");
  EXPECT_EQ(outcome.end, End::kExited);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_TRUE(run_shell("cat").good()) << "standard input is empty";
  const ProcessOutcome killed = run_shell("kill -SEGV $$");
  EXPECT_EQ(killed.end, End::kSignal);
  EXPECT_EQ(killed.code, SIGSEGV);
}

TEST(LimitedProcess, InheritsNothing) {
  setenv("VLCACHE_TEST_SECRET", "1", 1);
  const int open_file = dup(STDERR_FILENO);  // without FD_CLOEXEC
  const ProcessOutcome outcome = run_shell("env; pwd; ls -1 /proc/self/fd; ulimit -c");
  close(open_file);
  EXPECT_EQ(output_of(run_shell("echo $VLCACHE_TEST_SECRET")), "\n");
  EXPECT_EQ(output_of(run_shell("pwd; ulimit -c; ulimit -f")), "/\n0\n0\n");
  // 4: the folder that ls reads.
  EXPECT_THAT(output_of(outcome), testing::HasSubstr("0\n1\n2\n3\n4\n0\n"));
}

TEST(LimitedProcess, EndsAtItsLimits) {
  const ProcessLimits short_time{.time = std::chrono::milliseconds(50)};
  EXPECT_EQ(run_shell("sleep 100", short_time).end, End::kLate);
  EXPECT_EQ(run_shell("while :; do :; done", short_time).end, End::kLate);
  EXPECT_EQ(run_shell("exec >&- 2>&-; sleep 100", short_time).end, End::kLate) << "after it has closed its pipes";
  EXPECT_EQ(run_shell("yes", {.output_bytes = 1000}).end, End::kTooMuch);
  EXPECT_EQ(run_shell("yes >&2", short_time).end, End::kLate);
  EXPECT_FALSE(run_shell("tail /dev/zero", {.memory_bytes = 64 << 20}).good());  // a line without end
  const ProcessOutcome file = run_shell("echo x > \"$(mktemp)\" && echo written");
  EXPECT_EQ(output_of(file), "");
}

TEST(LimitedProcess, LeavesNoChildren) {
  std::string group;
  {
    const ProcessOutcome outcome = run_shell("sleep 100 >&- 2>&- & echo $!");
    EXPECT_TRUE(outcome.good());
    group = output_of(outcome);
  }
  const pid_t left = std::stoi(group);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(10);
  // Killed; its new parent reaps it soon.
  const auto lives = [&] {
    std::ifstream stat("/proc/" + std::to_string(left) + "/stat");
    std::string text;
    std::getline(stat, text);
    return !text.empty() && text.find(") Z") == std::string::npos;
  };
  while (lives() && Clock::now() < deadline) usleep(1000);
  EXPECT_FALSE(lives());
}

TEST(LimitedProcess, EndsWhenItIsCancelled) {
  int n_asked = 0;
  EXPECT_EQ(run_shell("sleep 100", {}, {.cancelled = [&] { return ++n_asked > 2; }}).end, End::kCancelled);
}

TEST(LimitedProcess, HandsItsOutputOnAsItComes) {
  int64_t n_bytes = 0;
  const auto take = [&](std::span<const std::byte> piece) { n_bytes += std::ssize(piece); };
  const std::string script = "head -c 3000000 /dev/zero";
  const ProcessOutcome outcome = run_shell(script, {.output_bytes = 3'000'000}, {.take = take});
  EXPECT_TRUE(outcome.good());
  EXPECT_TRUE(outcome.output.empty());
  EXPECT_EQ(n_bytes, 3'000'000);
  EXPECT_EQ(run_shell(script, {.output_bytes = 2'999'999}, {.take = take}).end, End::kTooMuch);
  // The time that is spent taking is not the helper's.
  const auto slow = [&](std::span<const std::byte>) { usleep(300'000); };
  EXPECT_TRUE(run_shell("echo x", {.time = std::chrono::milliseconds(200)}, {.take = slow}).good());
  EXPECT_THROW(run_shell("yes", {}, {.take = [](auto) { throw std::runtime_error("enough"); }}), std::runtime_error);
}

TEST(LimitedProcess, FindsProgramsInThePath) {
  EXPECT_TRUE(find_program("sh").has_value());
  EXPECT_FALSE(find_program("no-such-program-at-all").has_value());
  const MemoryFile none({});
  const ProcessLimits no_sandbox{.sandbox = {.system_calls = false, .files = false}};
  EXPECT_EQ(run_limited("/nowhere/program", {}, none, no_sandbox).code, kNotStarted);
}

}  // namespace
}  // namespace vlcache
