// Every system call of storing and reading fails once, in every way it can: interrupted, partial, for lack of space,
// permanently. Replaces libc's functions, as sanitizers also do: not built with them.
#ifndef VLCACHE_REF_ONLY

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "store/disk/tier.h"
#include "store/store_testing.h"

namespace {

// After n more calls, one fails with `error`, or, for 0, does half of the work.
thread_local int t_calls_left = -1;
thread_local int t_error = 0;

bool fails() {
  if (t_calls_left < 0 || t_calls_left-- > 0) return false;
  errno = t_error;
  return true;
}
size_t half(size_t n) { return n > 1 ? n / 2 : n; }

}  // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t n) {
  if (fails()) {
    if (t_error != 0) return -1;
    n = half(n);
  }
  return syscall(SYS_write, fd, data, n);
}
ssize_t pread(int fd, void* data, size_t n, off_t offset) {
  if (fails()) {
    if (t_error != 0) return -1;
    n = half(n);
  }
  return syscall(SYS_pread64, fd, data, n, offset);
}
int fsync(int fd) {
  if (fails() && t_error != 0) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int rename(const char* from, const char* to) noexcept {
  if (fails() && t_error != 0) return -1;
  return static_cast<int>(syscall(SYS_rename, from, to));
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (fails() && t_error != 0) return -1;
  return static_cast<int>(syscall(SYS_mkdir, path, mode));
}
int futimens(int fd, const timespec* times) noexcept {
  if (fails() && t_error != 0) return -1;
  return static_cast<int>(syscall(SYS_utimensat, fd, nullptr, times, 0));
}
}

namespace vlcache {
namespace {

using DiskSyscalls = StoreTest;

// Runs `work` with its n-th call failing, n = 0, 1, ..., until it makes fewer calls than that. Returns the number of
// calls.
template <typename F>
int with_each_call(int error, const F& work) {
  for (int n = 0;; ++n) {
    t_calls_left = n;
    t_error = error;
    const bool failed = work(n);
    const bool reached = t_calls_left < 0;
    t_calls_left = -1;
    if (!reached) {
      EXPECT_FALSE(failed) << "without a fault";
      return n;
    }
  }
}

TEST_F(DiskSyscalls, StoringFailsCleanly) {
  for (const int error : {0, EINTR, EIO, ENOSPC, EDQUOT, EROFS}) {
    DiskTier tier(options());
    const Stored stored = make_record(make_key(1), {10, 0, 2'500'000});
    int n_failed = 0;
    const int n_calls = with_each_call(error, [&](int n) {
      std::filesystem::remove_all(tier.path_of(stored.record.key).parent_path());
      const PutResult result = tier.put(stored.record, kNoDeadline);
      const int left = std::exchange(t_calls_left, -1);  // the calls below are not under test
      const bool full = error == ENOSPC || error == EDQUOT;
      EXPECT_TRUE(result.there() || result.outcome == (full ? PutOutcome::kNoSpace : PutOutcome::kIo)) << n;
      EXPECT_EQ(result.there(), result.detail.empty());
      EXPECT_EQ(files_in(root_, ".tmp"), std::vector<std::string>()) << n;
      const ReadAll read = read_all(tier, stored.record.key);
      EXPECT_EQ(reason(read.miss), result.there() ? "hit" : "absent") << n;
      if (result.there()) {
        EXPECT_EQ(read.sections, stored.sections) << n;
      }
      n_failed += !result.there();
      t_calls_left = left;
      return !result.there();
    });
    EXPECT_GE(n_calls, 8) << error;  // mkdir, sync of its folder, five writes, fsync, rename, sync
    if (error == 0) {
      EXPECT_EQ(n_failed, 0);
    } else if (error != EINTR) {
      EXPECT_EQ(n_failed, n_calls - 2) << error;  // a folder that cannot be synced is no failure
    }
  }
}

TEST_F(DiskSyscalls, ReadingFailsCleanly) {
  for (const int error : {0, EINTR, EIO, ESTALE}) {
    DiskTier tier(options());
    const Stored stored = make_record(make_key(1), std::vector<size_t>(300, 20));  // a header of two reads
    ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
    int n_failed = 0;
    const int n_calls = with_each_call(error, [&](int n) {
      const ReadAll read = read_all(tier, stored.record.key);
      EXPECT_TRUE(!read.miss || reason(read.miss) == "io error") << n << reason(read.miss);
      if (!read.miss) {
        EXPECT_EQ(read.sections, stored.sections);
      }
      n_failed += read.miss.has_value();
      return read.miss.has_value();
    });
    EXPECT_EQ(n_calls, 303);                                                          // with the time of use
    EXPECT_EQ(n_failed, error == 0 || error == EINTR ? 0 : 302);                      // which may fail without effect
    EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections) << error;  // no failure removed it
  }
}

}  // namespace
}  // namespace vlcache

#endif
