// File: an open descriptor. UnfinishedFile: a file that readers see whole or not at all.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

struct stat;

namespace vlcache {

// An open file descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  ~File();
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "what: No such file or directory", from errno.
std::string errno_text(const std::string& what);

// The result of a system call that is repeated after a signal interrupted it.
template <typename F>
auto retried(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Why what a file or a folder holds may come from another user: it belongs to neither this process's user nor root, or
// its group or others may write to it. Empty: no such reason. Of a file, `status` is that of the open descriptor: the
// path may name another file a moment later. A reason to compute again, not a proof of harm.
std::string foreign_reason(const struct stat& status);

// A file while it is written, readable and writable for its user alone whatever the umask is. Until committed it has a
// name that no reader opens, and holds a lock that shows that its writer lives; it is removed unless committed.
class UnfinishedFile {
 public:
  // In `folder`, which is created with mode 0700 if only its last part is missing.
  explicit UnfinishedFile(std::filesystem::path folder);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // errno of the first call that failed, after which the other functions do nothing; 0: none. problem() says where.
  int error() const { return error_; }
  const std::string& problem() const { return problem_; }
  const File& file() const { return file_; }
  const std::filesystem::path& folder() const { return folder_; }

  void write(std::span<const std::byte> bytes);
  // Overwrites bytes at an offset; write() continues where it was.
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  // Syncs to the medium, then renames: one step for every reader.
  void commit(const std::filesystem::path& path);

 private:
  void fail(const std::filesystem::path& path);  // from errno
  void create();

  std::filesystem::path folder_, path_;
  File file_;
  int error_ = 0;
  std::string problem_;
};

// Removes the file if it is an UnfinishedFile whose writer has died.
bool remove_if_abandoned(const std::filesystem::path& path);

}  // namespace vlcache
