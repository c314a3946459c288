#include "base/os/system_call_filter.h"

#include <asm/ioctls.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdint>

namespace vlcache {
namespace {

static_assert(std::endian::native == std::endian::little);  // argument() is the low half

constexpr unsigned kNewNamespaces =  // by clone; that of clocks is asked for by clone3 alone
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
constexpr unsigned kToWrite = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | 020000000 /* O_TMPFILE */;
constexpr size_t kCall = offsetof(seccomp_data, nr), kAbi = offsetof(seccomp_data, arch);
// All architectures number calls alike from 424 on. The first that is not looked at below (setxattrat, Linux 6.13):
constexpr unsigned kFirstUnknown = 463;

constexpr size_t argument(int i, bool high = false) {
  return offsetof(seccomp_data, args) + sizeof(uint64_t) * static_cast<size_t>(i) + (high ? sizeof(uint32_t) : 0);
}
constexpr unsigned refused(int error) { return SECCOMP_RET_ERRNO | static_cast<unsigned>(error); }

constexpr unsigned kIfEqual = BPF_JMP | BPF_JEQ | BPF_K, kIfAtLeast = BPF_JMP | BPF_JGE | BPF_K,
                   kIfAnyBit = BPF_JMP | BPF_JSET | BPF_K, kReturn = BPF_RET | BPF_K;

}  // namespace

void SystemCallFilter::add(unsigned code, unsigned value, unsigned if_true, unsigned if_false) {
  program_.push_back({.code = static_cast<uint16_t>(code),
                      .jt = static_cast<uint8_t>(if_true),
                      .jf = static_cast<uint8_t>(if_false),
                      .k = value});
}

void SystemCallFilter::load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)); }

void SystemCallFilter::refuse(std::initializer_list<long> calls, int error) {
  for (const long call : calls) {
    add(kIfEqual, static_cast<unsigned>(call), 0, 1);
    add(kReturn, refused(error));
  }
}

// The call is allowed if its argument has all of one set of bits (of one bit, or none) and none of another.
void SystemCallFilter::only_with(long call, int argument_index, unsigned needed, unsigned forbidden) {
  add(kIfEqual, static_cast<unsigned>(call), 0, needed != 0 ? 6 : 4);
  load(argument(argument_index));
  add(kIfAnyBit, forbidden, 0, 1);
  add(kReturn, refused(EPERM));
  if (needed != 0) {
    add(kIfAnyBit, needed, 1, 0);
    add(kReturn, refused(EPERM));
  }
  add(kReturn, SECCOMP_RET_ALLOW);
}

// prlimit64(process, resource, new, old)
void SystemCallFilter::only_own_limits() {
  add(kIfEqual, SYS_prlimit64, 0, 11);
  load(argument(0));
  add(kIfEqual, 0, 1, 0);  // the caller itself
  add(kReturn, refused(EPERM));
  load(argument(1));
  add(kIfEqual, RLIMIT_NOFILE, 5, 0);
  load(argument(2));
  add(kIfEqual, 0, 0, 2);
  load(argument(2, /*high=*/true));
  add(kIfEqual, 0, 1, 0);
  add(kReturn, refused(EPERM));
  add(kReturn, SECCOMP_RET_ALLOW);
}

// tgkill(process, thread, signal): abort() sends one to its own process.
void SystemCallFilter::only_own_signals() {
  add(kIfEqual, SYS_tgkill, 0, 4);
  load(argument(0));
  own_process_ = program_.size();
  add(kIfEqual, 0, 1, 0);
  add(kReturn, refused(EPERM));
  add(kReturn, SECCOMP_RET_ALLOW);
}

// ioctl(file, request, ...): by these, characters are typed into a terminal.
void SystemCallFilter::no_terminals() {
  add(kIfEqual, SYS_ioctl, 0, 6);
  load(argument(1));
  add(kIfEqual, TIOCSTI, 2, 0);
  add(kIfEqual, TIOCLINUX, 1, 0);
  add(kIfEqual, TIOCSCTTY, 0, 1);
  add(kReturn, refused(EPERM));
  add(kReturn, SECCOMP_RET_ALLOW);
}

SystemCallFilter::SystemCallFilter() {
#if defined(__x86_64__)
  constexpr unsigned kOwnAbi = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
  constexpr unsigned kOwnAbi = AUDIT_ARCH_AARCH64;
#else
  constexpr unsigned kOwnAbi = 0;
#endif
  load(kAbi);
  add(kIfEqual, kOwnAbi, 1, 0);
  add(kReturn, refused(EPERM));
  load(kCall);
#if defined(__x86_64__)
  add(kIfAtLeast, 0x40000000, 0, 1);  // x32
  add(kReturn, refused(EPERM));
#endif
  add(kIfAtLeast, kFirstUnknown, 0, 1);
  add(kReturn, refused(ENOSYS));
  // By number where Debian 12's headers have no name yet: fchmodat2.
  refuse({SYS_clone3, SYS_openat2, 452}, ENOSYS);
  refuse({SYS_socket, SYS_socketpair, SYS_bind, SYS_connect, SYS_listen, SYS_accept, SYS_accept4}, EPERM);
  refuse({SYS_execveat,
          SYS_ptrace,
          SYS_process_vm_readv,
          SYS_process_vm_writev,
          SYS_process_madvise,
          SYS_kcmp,
          SYS_process_mrelease,
          SYS_pidfd_open,
          SYS_pidfd_getfd,
          SYS_pidfd_send_signal,
          SYS_kill,
          SYS_tkill,
          SYS_rt_sigqueueinfo,
          SYS_rt_tgsigqueueinfo,
          SYS_setpriority,
          SYS_ioprio_set,
          SYS_sched_setparam,
          SYS_sched_setscheduler,
          SYS_sched_setattr,
          SYS_sched_setaffinity,
          SYS_migrate_pages,
          SYS_move_pages},
         EPERM);
  refuse({SYS_shmget, SYS_shmat, SYS_shmctl, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_semget, SYS_semctl,
          SYS_semop, SYS_semtimedop, SYS_mq_open, SYS_mq_unlink},
         EPERM);
  refuse({SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_move_mount,
          SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr},
         EPERM);
  refuse({SYS_add_key, SYS_request_key, SYS_keyctl, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup,
          SYS_io_uring_enter, SYS_io_uring_register, SYS_fanotify_init, SYS_name_to_handle_at, SYS_open_by_handle_at},
         EPERM);
  refuse({SYS_init_module,   SYS_finit_module,  SYS_delete_module, SYS_kexec_load,    SYS_kexec_file_load,
          SYS_reboot,        SYS_swapon,        SYS_swapoff,       SYS_acct,          SYS_syslog,
          SYS_quotactl,      SYS_quotactl_fd,   SYS_sethostname,   SYS_setdomainname, SYS_settimeofday,
          SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex,      SYS_personality,   SYS_vhangup},
         EPERM);
  refuse({SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_mkdirat,     SYS_mknodat,      SYS_unlinkat,    SYS_symlinkat,
          SYS_linkat,   SYS_renameat2, SYS_fchmod,    SYS_fchmodat,    SYS_fchown,       SYS_fchownat,    SYS_utimensat,
          SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr},
         EPERM);
#if defined(SYS_renameat)
  refuse({SYS_renameat}, EPERM);
#endif
#if defined(SYS_setrlimit)
  refuse({SYS_setrlimit}, EPERM);
#endif
#if defined(__x86_64__)  // newer architectures have one call for each kind
  refuse(
      {SYS_fork, SYS_vfork, SYS_creat, SYS_mkdir, SYS_rmdir, SYS_mknod, SYS_unlink, SYS_symlink, SYS_link, SYS_rename,
       SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_iopl, SYS_ioperm, SYS_modify_ldt},
      EPERM);
  only_with(SYS_open, 1, 0, kToWrite);
#endif
  only_with(SYS_openat, 2, 0, kToWrite);
  only_with(SYS_clone, 0, CLONE_THREAD, kNewNamespaces);
  only_own_limits();
  only_own_signals();
  no_terminals();
  add(kReturn, SECCOMP_RET_ALLOW);
}

bool SystemCallFilter::apply() {
  program_[own_process_].k = static_cast<unsigned>(syscall(SYS_getpid));
  const sock_fprog program{.len = static_cast<unsigned short>(program_.size()), .filter = program_.data()};
  // Not by seccomp(2), for which the filters of systemd 252 have no group: units would have to name it.
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace vlcache
