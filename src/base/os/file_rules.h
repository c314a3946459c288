// FileRules: which files a helper program may open and execute, as rules of Landlock (landlock(7)).
#pragma once

#include <filesystem>

namespace vlcache {

// Under these rules a program executes itself and its loader, reads the files below, and opens nothing else:
//   /usr, /lib*, /etc/ld.so.cache: libraries, fonts, the data of poppler;
//   /etc/fonts, its caches, and the folders that /etc/fonts names;
//   /dev/null, /dev/urandom;
//   of a program that lies elsewhere: itself, and of PREFIX/bin/PROGRAM also PREFIX/lib, lib64, share and etc.
// No file is written, made, renamed or removed. Where the kernel has later versions of Landlock, no file is truncated,
// no device is controlled, no TCP port is bound or connected to, and no signal and no connection to an abstract socket
// leaves the program. Descriptors that it inherits are not restricted, nor is opening memory files by /proc/self/fd.
// Status, owners, modes and times of files are not Landlock's (base/os/system_call_filter.h refuses to change them).
class FileRules {
 public:
  // The kernel's version of Landlock; 0: it has none, or a container or service manager forbids it. Asked once.
  static int version();

  // Throws Error(kIo) if the kernel refuses. Costs about 20 system calls.
  explicit FileRules(const std::filesystem::path& program);
  ~FileRules();
  FileRules(const FileRules&) = delete;
  int fd() const { return fd_; }

  // Puts the calling process under the rules of a descriptor, for good. Returns false with errno if the kernel refuses;
  // needs PR_SET_NO_NEW_PRIVS. One system call: for use after vfork.
  static bool apply(int fd);

 private:
  int fd_ = -1;
};

}  // namespace vlcache
