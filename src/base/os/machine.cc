#include "base/os/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace vlcache {
namespace {

namespace fs = std::filesystem;

// Whether the comma-separated `list` names `word`.
bool names(const std::string& list, std::string_view word) {
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

// Where one controller of this process is mounted.
struct Place {
  bool v2 = false;
  fs::path top;    // the mounted folder
  fs::path group;  // the process's own, top or below
};

// The process's group as /proc/self/cgroup names it ("4:memory:/a/b", "0::/a/b"); none: it has no such controller.
std::optional<std::string> group_path(const fs::path& root, bool v2, std::string_view controller) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() && line.starts_with("0:") : names(controllers, controller))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

// `path` below `top`; none if it does not lie there.
std::optional<std::string> below(const std::string& path, const std::string& top) {
  if (top == "/") return path.substr(std::min<size_t>(1, path.size()));
  if (path == top) return "";
  if (path.starts_with(top + "/")) return path.substr(top.size() + 1);
  return std::nullopt;
}

// Every mounted hierarchy of `controller`. A line of mountinfo: id parent device ROOT POINT options... - TYPE source
// OPTIONS.
std::vector<Place> find_places(const fs::path& root, std::string_view controller) {
  std::vector<Place> places;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::string skip, mounted, point, type, options;
    std::istringstream(line.substr(0, dash)) >> skip >> skip >> skip >> mounted >> point;
    std::istringstream(line.substr(dash + 3)) >> type >> skip >> options;
    const bool v2 = type == "cgroup2";
    if (point.empty() || !(v2 || (type == "cgroup" && names(options, controller)))) continue;
    const std::optional<std::string> path = group_path(root, v2, controller);
    if (!path) continue;
    // Inside a container the path may lead outside of the mount: then only the top is visible.
    const fs::path top = root / fs::path(point).relative_path();
    const std::string inside = below(*path, mounted).value_or("");
    places.push_back({v2, top, inside.empty() || inside.starts_with("..") ? top : top / inside});
  }
  return places;
}

std::vector<std::string> words_of(const fs::path& file) {
  std::vector<std::string> words;
  std::ifstream in(file);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// The number in `text` if it is positive; "max" and -1 mean no limit.
std::optional<double> positive(const std::string& text) {
  double value = 0.0;
  std::istringstream in(text);
  if (!(in >> value) || !in.eof() || !(value > 0.0)) return std::nullopt;
  return value;
}

std::optional<double> cpus_of(const fs::path& group, bool v2) {
  std::vector<std::string> words = words_of(group / (v2 ? "cpu.max" : "cpu.cfs_quota_us"));
  if (!v2) {
    const std::vector<std::string> period = words_of(group / "cpu.cfs_period_us");
    words.insert(words.end(), period.begin(), period.end());
  }
  if (words.size() != 2) return std::nullopt;
  const std::optional<double> quota = positive(words[0]), period = positive(words[1]);
  if (!quota || !period) return std::nullopt;
  return *quota / *period;
}

std::optional<double> memory_of(const fs::path& group, bool v2) {
  const std::vector<std::string> words = words_of(group / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  return words.size() == 1 ? positive(words[0]) : std::nullopt;
}

// The smallest `limit_of` over the groups of `controller` from the process's own to the top.
double smallest(const fs::path& root, std::string_view controller,
                std::optional<double> (*limit_of)(const fs::path&, bool)) {
  double least = std::numeric_limits<double>::infinity();
  for (const Place& place : find_places(root, controller)) {
    for (fs::path group = place.group;; group = group.parent_path()) {
      least = std::min(least, limit_of(group, place.v2).value_or(least));
      if (group == place.top || !group.has_relative_path()) break;
    }
  }
  return least;
}

// Counts the CPUs in the affinity of the calling thread. The set grows until the kernel's fits.
int allowed_cpus() {
  for (size_t n = CPU_SETSIZE; n <= size_t{1} << 20; n *= 2) {
    std::vector<cpu_set_t> set(n / CPU_SETSIZE);
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, set.data()));
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace

// The first line of /proc/stat: "cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ...", in ticks.
double OtherLoad::cpus() {
  constexpr double kLeastSeconds = 0.1;
  std::ifstream in(root_ / "proc/stat");
  std::string name;
  double ticks[7] = {};
  in >> name;
  for (double& t : ticks) in >> t;
  if (!in) return cpus_ = 0;
  const auto seconds = [](clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double all_s =
      (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double own_s = seconds(CLOCK_PROCESS_CPUTIME_ID), at_s = seconds(CLOCK_MONOTONIC);
  if (at_s_ > 0) {
    if (at_s - at_s_ < kLeastSeconds) return cpus_;
    cpus_ = std::max(0.0, (all_s - all_s_ - (own_s - own_s_)) / (at_s - at_s_));
  }
  all_s_ = all_s;
  own_s_ = own_s;
  at_s_ = at_s;
  return cpus_;
}

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits{.cpus = smallest(root, "cpu", cpus_of)};
  const double bytes = smallest(root, "memory", memory_of);
  if (bytes < 0x1p62) limits.memory_bytes = static_cast<int64_t>(bytes);
  return limits;
}

int usable_cpus() {
  const int n = allowed_cpus();
  const double quota = std::ceil(cgroup_limits().cpus);
  return quota < n ? std::max(1, static_cast<int>(quota)) : n;
}

int64_t usable_memory() {
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(physical, cgroup_limits().memory_bytes);
}

}  // namespace vlcache
