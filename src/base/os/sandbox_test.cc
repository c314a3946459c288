#include "base/os/sandbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/os/file_rules.h"
#include "base/os/limited_process.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Sandbox kNone{.system_calls = false, .files = false}, kFilterAlone{.files = false},
    kFilesAlone{.system_calls = false};

class Helper : public testing::Test {
 protected:
  Helper() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* name : {"file", "other"}) std::ofstream(folder_ / name) << "secret";
  }
  ~Helper() override { std::filesystem::remove_all(folder_); }

  // How each try of tests/sandbox_tries.cc ended: "ok", or the name of its error.
  std::map<std::string, std::string> tries(const Sandbox& sandbox) const {
    const std::string input = "input";
    const MemoryFile file(std::as_bytes(std::span(input)));
    const ProcessOutcome outcome =
        run_limited(VLCACHE_SANDBOX_TRIES, {folder_.string(), "--last", "/bin/sh"}, file, {.sandbox = sandbox});
    EXPECT_TRUE(outcome.good()) << outcome.errors;
    std::istringstream lines({reinterpret_cast<const char*>(outcome.output.data()), outcome.output.size()});
    std::map<std::string, std::string> all;
    for (std::string name, result; lines >> name >> result;) all[name] = result;
    return all;
  }

  // Tries that neither the filter nor the rules refused; what helpers need is not among them, and must have worked.
  std::set<std::string> not_refused(const Sandbox& sandbox) const {
    std::set<std::string> names;
    for (const auto& [name, result] : tries(sandbox)) {
      if (name.starts_with("needed-")) {
        EXPECT_EQ(result, "ok") << name;
      } else if (result != "EPERM" && result != "EACCES" && result != "ENOSYS") {
        names.insert(name);
      }
    }
    return names;
  }

  bool untouched() const {
    return std::filesystem::exists(folder_ / "other") && std::filesystem::file_size(folder_ / "other") == 6 &&
           std::distance(std::filesystem::directory_iterator(folder_), {}) == 2;
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "sandbox";
};

// What docs/server/images.md claims.
TEST_F(Helper, MayDoNothingUnderAllOfTheSandbox) {
  if (FileRules::version() == 0) GTEST_SKIP() << "the kernel has no Landlock";
  EXPECT_THAT(not_refused({}), IsEmpty());
  EXPECT_TRUE(untouched());
}

TEST_F(Helper, ReadsAndBecomesAnotherProgramUnderTheFilterAlone) {
  std::set<std::string> names = not_refused(kFilterAlone);
  // Depends on the settings of the machine (kernel.yama.ptrace_scope).
  for (const char* name : {"parent-memory", "parent-environment"}) names.erase(name);
  EXPECT_THAT(names, ElementsAre("exec", "list-root", "list-user-folder", "read-own-environment", "read-passwd",
                                 "read-user-file"));
  EXPECT_TRUE(untouched());
}

TEST_F(Helper, IsRefusedByTheErrorsThatLibrariesExpect) {
  const auto found = tries(kFilterAlone);
  for (const char* name : {"clone3", "openat2", "newer-call"}) EXPECT_EQ(found.at(name), "ENOSYS") << name;
  for (const char* name : {"socket", "fork", "clone", "clone-newuser", "vfork", "ptrace", "mount", "bpf", "execveat",
                           "write-user-file", "io_uring_setup"}) {
    EXPECT_EQ(found.at(name), "EPERM") << name;
  }
#if defined(__x86_64__)
  EXPECT_EQ(found.at("x32"), "EPERM");
  EXPECT_EQ(found.at("i386"), "EPERM");
#endif
}

// The tries are tries: without a sandbox they go through.
TEST_F(Helper, DoesMuchWithoutASandbox) {
  const std::set<std::string> names = not_refused(kNone);
  for (const char* name : {"socket", "fork", "clone", "exec", "read-passwd", "write-user-file", "truncate", "unlink"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(untouched());
}

TEST_F(Helper, OpensNothingUnderTheRulesAlone) {
  if (FileRules::version() == 0) GTEST_SKIP() << "the kernel has no Landlock";
  const std::set<std::string> names = not_refused(kFilesAlone);
  for (const char* name : {"exec", "read-passwd", "read-user-file", "write-user-file", "create-file", "symlink"}) {
    EXPECT_FALSE(names.contains(name)) << name;
  }
}

ProcessOutcome ends(int code, const std::string& errors = "") { return {.code = code, .errors = errors}; }

TEST(SandboxChoice, LeavesOutWhatAProgramDoesNotBear) {
  if (FileRules::version() == 0) GTEST_SKIP() << "the kernel has no Landlock";
  const auto choose = [](std::set<std::pair<bool, bool>> working) {
    return choose_sandbox("the programs", [working](const Sandbox& sandbox) {
      return working.contains({sandbox.system_calls, sandbox.files}) ? ends(0) : ends(3, "no \xfflibrary\nmore");
    });
  };
  SandboxChoice choice = choose({{false, false}, {true, true}});
  EXPECT_EQ(choice.sandbox, Sandbox{});
  EXPECT_EQ(choice.left_out, "");
  choice = choose({{false, false}, {true, false}, {false, true}});
  EXPECT_EQ(choice.sandbox, kFilterAlone);
  EXPECT_EQ(choice.left_out,
            "the programs run without Landlock: a fault in them could read the user's files (no ?library)");
  choice = choose({{false, false}, {false, true}});
  EXPECT_EQ(choice.sandbox, kFilesAlone);
  EXPECT_THAT(choice.left_out, HasSubstr("without a seccomp filter: "));
  choice = choose({{false, false}});
  EXPECT_EQ(choice.sandbox, kNone);
  EXPECT_THAT(choice.left_out, HasSubstr("without a seccomp filter and Landlock: "));
  choice = choose({});  // broken, sandbox or not
  EXPECT_EQ(choice.sandbox, Sandbox{});
  EXPECT_EQ(choice.left_out, "");
}

TEST(SandboxChoice, LeavesOutWhatChangesTheResult) {
  const SandboxChoice choice = choose_sandbox("the programs", [](const Sandbox& sandbox) {
    ProcessOutcome outcome = ends(0);
    if (sandbox.files) outcome.output.push_back(std::byte{1});
    return outcome;
  });
  EXPECT_EQ(choice.sandbox, kFilterAlone);
  EXPECT_NE(choice.left_out, "");
}

// A container's profile: what this process and its children get for this call from now on.
constexpr unsigned with(int error) { return SECCOMP_RET_ERRNO | static_cast<unsigned>(error); }
void forbid(unsigned call, unsigned action, std::optional<unsigned> first_argument = {}) {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
                           BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first_argument.value_or(0), 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, action),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  if (!first_argument) program[3].jf = 0;  // whatever it is
  const sock_fprog filter{.len = 6, .filter = program};
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(1);
}
void forbid_filters(unsigned action) { forbid(SYS_prctl, action, PR_SET_SECCOMP); }

// Ends the process with 0 if `sandbox` is what works here.
[[noreturn]] void end_with_choice_of(const Sandbox& sandbox) {
  const MemoryFile none({});
  const SandboxChoice choice = choose_sandbox("the programs", [&](const Sandbox& tried) {
    return run_limited(*find_program("true"), {}, none, {.sandbox = tried});
  });
  std::fprintf(stderr, "%s\n", choice.left_out.c_str());
  _exit(choice.sandbox == sandbox ? 0 : 2);
}

TEST(SandboxDeathTest, LeavesOutWhatTheKernelOrAContainerForbids) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exits_well = testing::ExitedWithCode(0);
  for (const unsigned action : {with(ENOSYS), with(EPERM), unsigned{SECCOMP_RET_KILL_PROCESS}}) {
    EXPECT_EXIT((forbid(SYS_landlock_create_ruleset, action), end_with_choice_of(kFilterAlone)), exits_well,
                "Landlock: .*the kernel lacks it or a container forbids it");
  }
  if (FileRules::version() == 0) GTEST_SKIP() << "the kernel has no Landlock";
  EXPECT_EXIT((forbid(SYS_landlock_restrict_self, with(EPERM)), end_with_choice_of(kFilterAlone)), exits_well,
              "the kernel refuses Landlock rules");
  EXPECT_EXIT((forbid(SYS_landlock_add_rule, with(EPERM)), end_with_choice_of(kFilterAlone)), exits_well,
              "Landlock, /usr");
  EXPECT_EXIT((forbid_filters(with(EINVAL)), end_with_choice_of(kFilesAlone)), exits_well,
              "the kernel refuses a seccomp filter");
  EXPECT_EXIT((forbid_filters(SECCOMP_RET_KILL_PROCESS), end_with_choice_of(kFilesAlone)), exits_well,
              "without a seccomp filter");
  EXPECT_EXIT(
      (forbid(SYS_landlock_create_ruleset, with(EPERM)), forbid_filters(with(EINVAL)), end_with_choice_of(kNone)),
      exits_well, "without a seccomp filter and Landlock");
}

}  // namespace
}  // namespace vlcache
