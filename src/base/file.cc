#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace vlcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporarySuffix = ".tmp";

// Syncs a directory's entries to the medium.
bool sync_folder(const fs::path& folder) {
  const File file(retried([&] { return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  return file && retried([&] { return fsync(file.fd()); }) == 0;
}

// ".<pid>-<number>.tmp"
std::string temporary_name() {
  static std::atomic<uint64_t> counter{0};
  return "." + std::to_string(getpid()) + "-" + std::to_string(counter++) + std::string(kTemporarySuffix);
}

std::optional<pid_t> writer_of(const std::string& name) {
  pid_t pid = 0;
  if (!name.starts_with('.') || !name.ends_with(kTemporarySuffix)) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), pid);
  return error == std::errc() && *end == '-' && pid > 0 ? std::optional(pid) : std::nullopt;
}

}  // namespace

File::~File() {
  if (fd_ >= 0) close(fd_);
}

std::string errno_text(const std::string& what) {
  return what + ": " + std::error_code(errno, std::generic_category()).message();
}

std::string foreign_reason(const struct stat& status) {
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    const uid_t user = geteuid();
    return "it belongs to user " + std::to_string(status.st_uid) +
           (user == 0 ? ", not to root" : ", neither to user " + std::to_string(user) + " nor to root");
  }
  if ((status.st_mode & S_IWOTH) != 0) return "others may write to it";
  if ((status.st_mode & S_IWGRP) != 0) return "its group may write to it";
  return "";
}

UnfinishedFile::UnfinishedFile(fs::path folder) : folder_(std::move(folder)) {
  if (retried([&] { return mkdir(folder_.c_str(), 0700); }) == 0) {
    sync_folder(folder_.parent_path());
  } else if (errno != EEXIST) {
    fail(folder_);
    return;
  }
  create();
}

void UnfinishedFile::create() {
  // remove_if_abandoned() of another process may remove the file between its creation and its lock: then try again.
  for (int attempt = 0; attempt < 10; ++attempt) {
    path_ = folder_ / temporary_name();
    file_ =
        File(retried([&] { return open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600); }));
    if (!file_ && errno == EEXIST) continue;  // left by an earlier process of this number
    if (!file_) return fail(path_);
    const bool locked = retried([&] { return flock(file_.fd(), LOCK_EX); }) == 0;
    struct stat status {};
    if (!locked || (fstat(file_.fd(), &status) == 0 && status.st_nlink > 0)) return;
  }
  errno = EEXIST;
  fail(path_);
}

UnfinishedFile::~UnfinishedFile() {
  if (file_ && !path_.empty()) unlink(path_.c_str());
}

void UnfinishedFile::fail(const fs::path& path) {
  error_ = errno;
  problem_ = errno_text(path.string());
}

void UnfinishedFile::write(std::span<const std::byte> bytes) {
  while (error_ == 0 && !bytes.empty()) {
    const ssize_t n = retried([&] { return ::write(file_.fd(), bytes.data(), bytes.size()); });
    if (n < 0) return fail(folder_);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void UnfinishedFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (error_ == 0 && !bytes.empty()) {
    const ssize_t n = retried([&] { return ::pwrite(file_.fd(), bytes.data(), bytes.size(), offset); });
    if (n < 0) return fail(folder_);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void UnfinishedFile::commit(const fs::path& path) {
  if (error_ != 0) return;
  if (retried([&] { return fsync(file_.fd()); }) != 0) return fail(folder_);
  if (retried([&] { return rename(path_.c_str(), path.c_str()); }) != 0) return fail(path);
  path_.clear();
  // The file is whole and readable; that its name might not survive a power cut is no reason to report a failure.
  sync_folder(folder_);
}

// A writer holds a lock on its file. The lock also distinguishes it from a later process of the same number, and from
// one of another container; on a file system without locks, the process number decides.
bool remove_if_abandoned(const fs::path& path) {
  const auto pid = writer_of(path.filename().string());
  if (!pid) return false;
  const File file(retried([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
  if (!file) return false;
  if (retried([&] { return flock(file.fd(), LOCK_EX | LOCK_NB); }) == 0) return unlink(path.c_str()) == 0;
  return errno != EWOULDBLOCK && kill(*pid, 0) != 0 && errno == ESRCH && unlink(path.c_str()) == 0;
}

}  // namespace vlcache
