#include "base/os/file_rules.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace vlcache {
namespace {

// Of linux/landlock.h, which older systems have in part.
constexpr uint64_t kExecute = 1 << 0, kReadFile = 1 << 2, kReadFolder = 1 << 3;
constexpr uint64_t kAccess1 = (1 << 13) - 1;  // all that version 1 knows: the above, writing, making, removing
constexpr uint64_t kRefer = 1 << 13, kTruncate = 1 << 14, kControlDevice = 1 << 15;
constexpr uint64_t kBindAndConnectTcp = 3, kAbstractSocketsAndSignals = 3;
constexpr unsigned kAskVersion = 1;
constexpr int kPathRule = 1;

struct Ruleset {
  uint64_t files, network, scopes;
};
struct [[gnu::packed]] PathRule {
  uint64_t allowed;
  int32_t parent;
};

// Closed at the end.
struct Descriptor {
  explicit Descriptor(int fd) : fd(fd) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  const int fd;
};

// Allows `access` to a file, or to all below a folder. A file that is missing needs no rule.
void allow(int rules, const std::filesystem::path& path, uint64_t access) {
  const Descriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (file.fd < 0 || fstat(file.fd, &status) != 0) return;
  if (!S_ISDIR(status.st_mode)) access &= ~kReadFolder;
  const PathRule rule{access, file.fd};
  if (syscall(SYS_landlock_add_rule, rules, kPathRule, &rule, 0) != 0) {
    throw Error(ErrorCode::kIo, "Landlock, " + path.string() + ": " + std::strerror(errno));
  }
}

// The loader that an ELF program names; empty: it names none, or is no program of this machine's word size.
std::filesystem::path loader_of(const std::filesystem::path& program) {
  const Descriptor file(open(program.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr head;
  if (file.fd < 0 || pread(file.fd, &head, sizeof head, 0) != sizeof head ||
      std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part;
    const auto at = static_cast<off_t>(head.e_phoff + static_cast<uint64_t>(i) * sizeof part);
    if (pread(file.fd, &part, sizeof part, at) != sizeof part) return {};
    if (part.p_type != PT_INTERP) continue;
    std::array<char, 4096> name{};
    const size_t n = std::min<uint64_t>(part.p_filesz, name.size() - 1);
    if (pread(file.fd, name.data(), n, static_cast<off_t>(part.p_offset)) != static_cast<ssize_t>(n)) return {};
    return name.data();
  }
  return {};
}

// Absolute paths between <dir> or <cachedir> and its end, in fontconfig's files. Read once: fonts are installed seldom.
std::vector<std::filesystem::path> font_folders() {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  for (const char* place : {"/etc/fonts", "/etc/fonts/conf.d"}) {
    for (const auto& entry : std::filesystem::directory_iterator(place, error)) {
      if (entry.path().extension() != ".conf") continue;
      std::ifstream file(entry.path());
      const std::string text(std::istreambuf_iterator<char>(file), {});
      for (size_t at = text.find("dir"); at != std::string::npos; at = text.find("dir", at + 3)) {
        const size_t begin = text.find('>', at);
        const size_t end = text.find("</", at);
        if (begin == std::string::npos || end == std::string::npos || end < begin) continue;
        const std::string_view path = std::string_view(text).substr(begin + 1, end - begin - 1);
        if (path.size() > 1 && path.starts_with('/') && path.find('\n') == std::string_view::npos) {
          folders.emplace_back(path);
        }
      }
    }
  }
  return folders;
}

void allow_own_installation(int rules, const std::filesystem::path& program) {
  std::error_code error;
  std::filesystem::path real = std::filesystem::canonical(program, error);
  if (error) real = program;
  allow(rules, real, kExecute | kReadFile);
  if (const std::filesystem::path loader = loader_of(real); !loader.empty()) {
    allow(rules, loader, kExecute | kReadFile);
  }
  for (const std::filesystem::path& path : {program, real}) {
    if (path.parent_path().filename() != "bin") continue;
    for (const char* folder : {"lib", "lib64", "share", "etc"}) {
      allow(rules, path.parent_path().parent_path() / folder, kReadFile | kReadFolder);
    }
  }
}

// Asked in a process of its own, because a service manager's filter may kill a process that makes these calls.
int ask_version() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // no handler of this process runs in the child
  const pid_t pid = vfork();
  if (pid == 0) {  // system calls alone: the memory is the parent's
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
    syscall(SYS_landlock_add_rule, -1, kPathRule, nullptr, 0);
    syscall(SYS_landlock_restrict_self, -1, 0);
    _exit(static_cast<int>(std::clamp(version, 0L, 100L)));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

int FileRules::version() {
  static const int version = ask_version();
  return version;
}

FileRules::FileRules(const std::filesystem::path& program) {
  const int version = FileRules::version();
  const Ruleset ruleset{.files = kAccess1 | (version >= 2 ? kRefer : 0) | (version >= 3 ? kTruncate : 0) |
                                 (version >= 5 ? kControlDevice : 0),
                        .network = version >= 4 ? kBindAndConnectTcp : 0,
                        .scopes = version >= 6 ? kAbstractSocketsAndSignals : 0};
  fd_ = static_cast<int>(syscall(SYS_landlock_create_ruleset, &ruleset, sizeof ruleset, 0));
  if (fd_ < 0) throw Error(ErrorCode::kIo, std::string("Landlock: ") + std::strerror(errno));
  static const std::vector<std::filesystem::path> fonts = font_folders();
  try {
    for (const char* path : {"/usr", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/fonts",
                             "/var/cache/fontconfig", "/dev/null", "/dev/urandom"}) {
      allow(fd_, path, kReadFile | kReadFolder);
    }
    for (const std::filesystem::path& path : fonts) allow(fd_, path, kReadFile | kReadFolder);
    allow_own_installation(fd_, program);
  } catch (...) {
    close(fd_);
    throw;
  }
}

FileRules::~FileRules() { close(fd_); }

bool FileRules::apply(int fd) { return syscall(SYS_landlock_restrict_self, fd, 0) == 0; }

}  // namespace vlcache
