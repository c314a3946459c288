// SystemCallFilter: the system calls that a helper program has no use for, as a seccomp filter (seccomp(2)).
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace vlcache {

// What it refuses, by EPERM unless another error is named:
//   sockets; new processes (fork, vfork, clone without CLONE_THREAD; clone3: ENOSYS, so that libraries call clone,
//   whose flags a filter can see) and execveat, but not execve, by which the helper itself is started; other processes:
//   ptrace, their memory, descriptors, signals, priorities and limits, shared memory, messages; files: opening to
//   write, truncating, and calls that change names, owners, modes, times or attributes (openat2: ENOSYS); the helper's
//   own limits but that of descriptors, which it may only lower unless it is root's; namespaces, mounts, keys, bpf,
//   perf, userfaultfd, io_uring, terminals, the clock, modules, swap and the like; the calls of other ABIs (i386, x32),
//   and calls newer than this list (ENOSYS).
// Reading files is not restricted: a filter cannot see paths (base/os/file_rules.h can).
class SystemCallFilter {
 public:
  static constexpr bool kKnown =  // whether there is one for this architecture
#if defined(__x86_64__) || defined(__aarch64__)
      true;
#else
      false;
#endif

  SystemCallFilter();

  // Puts the calling process under the filter, for good. Returns false with errno if the kernel refuses; needs
  // PR_SET_NO_NEW_PRIVS. Only system calls and a store into this object: for use after vfork.
  bool apply();

 private:
  void load(size_t offset);  // a word of seccomp_data
  void add(unsigned code, unsigned value, unsigned if_true = 0, unsigned if_false = 0);
  void refuse(std::initializer_list<long> calls, int error);
  void only_with(long call, int argument, unsigned needed, unsigned forbidden);
  void only_own_limits();
  void only_own_signals();
  void no_terminals();

  std::vector<sock_filter> program_;
  size_t own_process_ = 0;  // the instruction that compares with the process's number
};

}  // namespace vlcache
