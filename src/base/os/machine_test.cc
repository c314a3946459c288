#include "base/os/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

namespace vlcache {
namespace {

namespace fs = std::filesystem;

constexpr double kNoCpuLimit = std::numeric_limits<double>::infinity();
constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();

class Cgroups : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("cgroups-" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // A process in `group`; `mounted` is the group that /sys/fs/cgroup shows as its top.
  void v2(const std::string& group, const std::string& mounted = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/root rw\n31 22 0:27 " + mounted +
                                     " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  CgroupLimits limits() const { return cgroup_limits(root_); }

  fs::path root_;
};

TEST_F(Cgroups, MissingFilesMeanNoLimit) {
  EXPECT_EQ(limits().cpus, kNoCpuLimit);
  EXPECT_EQ(limits().memory_bytes, kNoMemoryLimit);
  v2("/a");  // no limit files, as in the root group
  EXPECT_EQ(limits().cpus, kNoCpuLimit);
  EXPECT_EQ(limits().memory_bytes, kNoMemoryLimit);
}

TEST_F(Cgroups, Version2) {
  v2("/a");
  write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_EQ(limits().cpus, kNoCpuLimit);
  EXPECT_EQ(limits().memory_bytes, kNoMemoryLimit);
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  EXPECT_EQ(limits().cpus, 1.5);
  EXPECT_EQ(limits().memory_bytes, int64_t{4} << 30);
}

TEST_F(Cgroups, SmallestLimitOfTheHierarchyWins) {
  v2("/a/b/c");
  write("sys/fs/cgroup/a/cpu.max", "200000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.max", "1000\n");
  write("sys/fs/cgroup/a/b/c/memory.max", "3000\n");
  write("sys/fs/cgroup/other/memory.max", "1\n");
  EXPECT_EQ(limits().cpus, 2.0);
  EXPECT_EQ(limits().memory_bytes, 1000);
}

TEST_F(Cgroups, ContainerPathsAreResolved) {
  v2("/docker/1f", "/docker/1f");  // the mount shows the process's own group as its top
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(limits().cpus, 0.5);
  v2("/", "/");  // with a namespace of its own the process sees itself at the top
  EXPECT_EQ(limits().cpus, 0.5);
  v2("/docker/1f", "/elsewhere");
  EXPECT_EQ(limits().cpus, 0.5);
  v2("/../outside", "/");  // moved out of its namespace: only the mount counts
  write("sys/fs/outside/cpu.max", "10000 100000\n");
  EXPECT_EQ(limits().cpus, 0.5);
}

TEST_F(Cgroups, Version1) {
  write("proc/self/cgroup", "5:memory:/jobs/7\n4:cpu,cpuacct:/jobs\n1:name=systemd:/\n0::/\n");
  write("proc/self/mountinfo",
        "30 22 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "31 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 22 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // what "none" reads as
  write("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limits().cpus, kNoCpuLimit);
  EXPECT_EQ(limits().memory_bytes, kNoMemoryLimit);
  write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "2048\n");
  EXPECT_EQ(limits().cpus, 2.5);
  EXPECT_EQ(limits().memory_bytes, 2048);
}

TEST_F(Cgroups, InvalidValuesMeanNoLimit) {
  v2("/a");
  for (const char* text : {"", "\n", "abc 100000", "100000", "100000 0", "-5 100000", "1 2 3"}) {
    write("sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(limits().cpus, kNoCpuLimit) << text;
  }
  for (const char* text : {"", "0", "-1", "12x", "nan", "1 2"}) {
    write("sys/fs/cgroup/a/memory.max", text);
    EXPECT_EQ(limits().memory_bytes, kNoMemoryLimit) << text;
  }
}

TEST(Machine, CpuCountFollowsTheThreadsAffinity) {
  const int all = usable_cpus();
  EXPECT_GE(all, 1);
  int pinned = 0;
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    pinned = usable_cpus();
  }).join();
  EXPECT_EQ(pinned, 1);
  EXPECT_EQ(usable_cpus(), all);
}

TEST(Machine, UsableMemoryIsPositiveAndAtMostPhysical) {
  EXPECT_GT(usable_memory(), 0);
  EXPECT_LE(usable_memory(), static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

TEST(OtherLoad, CountsWhatThisProcessDidNotUse) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("vlcache-load-" + std::to_string(getpid()));
  fs::create_directories(root / "proc");
  const auto write = [&](int ticks) {
    std::ofstream(root / "proc/stat") << "cpu  " << ticks << " 10 20 5000 7 0 0 0 0 0\ncpu0 1 2 3\n";
  };
  write(1000);
  OtherLoad load(root);
  EXPECT_EQ(load.cpus(), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  write(1000 + 12 * static_cast<int>(sysconf(_SC_CLK_TCK)));  // twelve CPU seconds in 0.12 s or a little more
  const double cpus = load.cpus();
  EXPECT_GT(cpus, 1);
  EXPECT_LT(cpus, 101);
  fs::remove_all(root);
  EXPECT_EQ(load.cpus(), 0) << "it cannot be read";
}

}  // namespace
}  // namespace vlcache
