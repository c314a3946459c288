// sandbox_tries FOLDER [--last PROGRAM]: tries what a helper program may not do (docs/server/images.md) and writes how
// each try ended, one a line: "NAME ok" or "NAME ERRNO". FOLDER holds the user's files: `file` and `other`. Calls have
// arguments with which most of them do no harm when they are not refused, and then fail by another error than the
// sandbox's.
//   --last PROGRAM  at the end becomes that program, with the arguments -c 'echo exec ok'
// Standard error names the tries that were not refused, for tests that see no more than that.
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace {

std::string g_not_refused;

// result: -1 with errno, or anything else: it worked. A child that was made is ended.
void report(const char* name, long result) {
  const int error = errno;
  const bool refused = result == -1 && (error == EPERM || error == EACCES || error == ENOSYS);
  if (!refused) g_not_refused += (g_not_refused.empty() ? "" : " ") + std::string(name);
  std::printf("%s %s\n", name, result == -1 ? strerrorname_np(error) : "ok");
  std::fflush(stdout);
}

long opened(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd < 0 ? -1 : 0;
}

long read_some(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char byte;
  const ssize_t n = read(fd, &byte, 1);
  const int error = errno;
  close(fd);
  errno = error;
  return n < 0 ? -1 : 0;
}

// `made`: what fork returned. A child ends at once.
void report_child(const char* name, long made) {
  if (made == 0) _exit(0);
  report(name, made);
  if (made > 0) waitpid(static_cast<pid_t>(made), nullptr, 0);
}

void try_connections() {
  report("socket", socket(AF_INET, SOCK_STREAM, 0));
  report("socket-unix", socket(AF_UNIX, SOCK_STREAM, 0));
  int pair[2];
  report("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  report("connect", connect(0, reinterpret_cast<sockaddr*>(&address), sizeof address));
  report("bind", bind(0, reinterpret_cast<sockaddr*>(&address), sizeof address));
}

void try_processes() {
  report_child("fork", syscall(
#if defined(SYS_fork)
                           SYS_fork
#else
                           SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr
#endif
                           ));
  report_child("clone", syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  report_child("clone-newuser", syscall(SYS_clone, SIGCHLD | CLONE_NEWUSER, nullptr, nullptr, nullptr, nullptr));
  uint64_t arguments[11] = {0, 0, 0, 0, SIGCHLD};  // clone_args
  report_child("clone3", syscall(SYS_clone3, arguments, sizeof arguments));
  const pid_t child = vfork();
  if (child == 0) _exit(0);
  report("vfork", child);
  if (child > 0) waitpid(child, nullptr, 0);
}

void try_other_processes() {
  const pid_t parent = getppid();
  report("ptrace", ptrace(PTRACE_PEEKDATA, parent, nullptr, nullptr));  // without attaching: that would stop it
  char byte = 0;
  const iovec here{&byte, 1}, there{nullptr, 1};
  report("process_vm_readv", process_vm_readv(parent, &here, 1, &there, 1, 0));
  report("process_vm_writev", process_vm_writev(parent, &here, 1, &there, 1, 0));
  report("pidfd_open", syscall(SYS_pidfd_open, parent, 0));
  report("pidfd_getfd", syscall(SYS_pidfd_getfd, -1, 0, 0));
  report("kill", kill(parent, 0));
  report("tgkill", syscall(SYS_tgkill, parent, parent, 0));
  report("setpriority", setpriority(PRIO_PROCESS, static_cast<id_t>(parent), 0));
  report("prlimit", prlimit(parent, RLIMIT_CORE, nullptr, nullptr));
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  report("raise-own-limit", setrlimit(RLIMIT_FSIZE, &all));
  report("shmget", syscall(SYS_shmget, 1, 1, 0));
  report("parent-memory", opened("/proc/" + std::to_string(parent) + "/mem", O_RDONLY));
  report("parent-environment", read_some("/proc/" + std::to_string(parent) + "/environ"));
}

void try_system() {
  report("unshare", unshare(CLONE_NEWUSER));
  report("setns", setns(-1, 0));
  report("mount", mount(nullptr, nullptr, nullptr, 0, nullptr));
  report("umount", umount2("/nowhere", 0));
  report("open_tree", syscall(SYS_open_tree, -1, "nowhere", 0));
  report("fsopen", syscall(SYS_fsopen, nullptr, 0));
  report("chroot", chroot("/nowhere"));
  report("add_key", syscall(SYS_add_key, nullptr, nullptr, nullptr, 0, 0));
  report("request_key", syscall(SYS_request_key, nullptr, nullptr, nullptr, 0));
  report("keyctl", syscall(SYS_keyctl, -1, 0, 0, 0, 0));
  report("bpf", syscall(SYS_bpf, -1, nullptr, 0));
  report("perf_event_open", syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0));
  report("userfaultfd", syscall(SYS_userfaultfd, -1));
  report("io_uring_setup", syscall(SYS_io_uring_setup, 0, nullptr));
  report("tiocsti", syscall(SYS_ioctl, 0, 0x5412, nullptr));
  report("newer-call", syscall(463, -1, nullptr, 0, nullptr, nullptr, 0));
#if defined(__x86_64__)
  report("x32", syscall(0x40000000 + 39));  // getpid
  long i386 = 20;                           // getpid
  __asm__ volatile("int $0x80" : "+a"(i386) : : "memory");
  if (i386 < 0) errno = static_cast<int>(-i386);
  report("i386", i386 < 0 ? -1 : 0);
#endif
}

void try_files(const std::string& folder) {
  report("read-passwd", read_some("/etc/passwd"));
  if (folder.starts_with('/')) {
    report("read-user-file", read_some(folder + "/file"));
    report("list-user-folder", opened(folder, O_RDONLY | O_DIRECTORY));
  }
  report("list-root", opened("/", O_RDONLY | O_DIRECTORY));
  report("read-own-environment", read_some("/proc/self/environ"));
  report("write-user-file", opened(folder + "/file", O_WRONLY));
  report("create-file", opened(folder + "/made", O_WRONLY | O_CREAT));
  report("create-in-tmp", opened("/tmp", O_RDWR | O_TMPFILE));
  report("openat2", syscall(SYS_openat2, AT_FDCWD, nullptr, nullptr, 0));
  report("truncate", truncate((folder + "/other").c_str(), 0));
  report("chmod", chmod((folder + "/file").c_str(), 0644));
  report("rename", rename((folder + "/other").c_str(), (folder + "/moved").c_str()));
  report("symlink", symlink("/", (folder + "/link").c_str()));
  report("mkdir", mkdir((folder + "/made.d").c_str(), 0700));
  report("unlink", unlink((folder + "/moved").c_str()));
  report("write-null", opened("/dev/null", O_WRONLY));
}

// What helpers need and must work under the sandbox, too.
void try_needed() {
  report("needed-input", read_some("/proc/self/fd/3"));
  report("needed-library", read_some("/usr/lib/os-release"));
  report("needed-fonts", opened("/usr/share", O_RDONLY | O_DIRECTORY));
  report("needed-random", read_some("/dev/urandom"));
  report("needed-own-signal", syscall(SYS_tgkill, getpid(), getpid(), 0));
  const rlimit few{32, 32};
  report("needed-fewer-files", setrlimit(RLIMIT_NOFILE, &few));
  long thread = -1;
  try {
    std::thread([&] { thread = 0; }).join();
  } catch (const std::exception&) {
  }
  report("needed-thread", thread);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/nowhere";
  try_connections();
  try_processes();
  try_other_processes();
  try_system();
  try_files(folder);
  std::fprintf(stderr, "not refused: %s\n", g_not_refused.c_str());
  try_needed();
  if (argc > 3 && std::string_view(argv[2]) == "--last") {
    char* const arguments[] = {argv[3], const_cast<char*>("-c"), const_cast<char*>("echo exec ok"), nullptr};
    char* const environment[] = {nullptr};
    report("execveat", syscall(SYS_execveat, -1, argv[3], arguments, environment, 0x10000));
    execve(argv[3], arguments, environment);
    report("exec", -1);
  }
  return folder.starts_with('/') ? 0 : 1;  // called as another program is: fails, and its last line is shown
}
