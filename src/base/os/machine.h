// Finds what this process may use of the machine: CPUs by affinity and cgroup quota, memory by cgroup limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace vlcache {

// CPUs that the calling thread may run on, at most its cgroups' quotas (rounded up); at least 1.
int usable_cpus();

// Bytes of memory: the machine's, or less if a cgroup limits it.
int64_t usable_memory();

struct CgroupLimits {
  double cpus = std::numeric_limits<double>::infinity();  // CPU seconds per second
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
};

// The smallest limits between this process's cgroups, version 1 or 2, and the topmost mounted ones. Files are read
// below `root` (`root`/proc/self/cgroup ...); a missing or unreadable file means no limit.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

// How busy other processes keep the machine.
class OtherLoad {
 public:
  // `root` as in cgroup_limits().
  explicit OtherLoad(std::filesystem::path root = "/") : root_(std::move(root)) { cpus(); }
  // CPUs that were busy with other processes since the last call, on average; where that was less than 0.1 s ago, since
  // the call before. 0 if /proc/stat cannot be read.
  double cpus();

 private:
  std::filesystem::path root_;
  double all_s_ = 0, own_s_ = 0, at_s_ = 0;  // CPU seconds of all processes and of this one, and when
  double cpus_ = 0;
};

}  // namespace vlcache
