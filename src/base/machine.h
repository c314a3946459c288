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

}  // namespace vlcache
