#include "base/limited_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/clock.h"

namespace vlcache {
namespace {

using End = ProcessOutcome::End;

ProcessOutcome run_shell(const std::string& script, const ProcessLimits& limits = {},
                         const std::function<bool()>& cancelled = nullptr, std::string_view input = "") {
  const MemoryFile file(std::as_bytes(std::span(input)));
  return run_limited(*find_program("sh"), {"-c", script}, file, limits, cancelled);
}

std::string output_of(const ProcessOutcome& outcome) {
  return {reinterpret_cast<const char*>(outcome.output.data()), outcome.output.size()};
}

TEST(LimitedProcess, GivesOutputErrorsAndStatus) {
  const ProcessOutcome outcome = run_shell("cat /proc/self/fd/3; echo bad >&2; exit 7", {}, nullptr, "input");
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
  EXPECT_EQ(run_shell("sleep 100", {}, [&] { return ++n_asked > 2; }).end, End::kCancelled);
}

TEST(LimitedProcess, FindsProgramsInThePath) {
  EXPECT_TRUE(find_program("sh").has_value());
  EXPECT_FALSE(find_program("no-such-program-at-all").has_value());
  const MemoryFile none({});
  EXPECT_EQ(run_limited("/nowhere/program", {}, none, {}).code, 127);
}

}  // namespace
}  // namespace vlcache
