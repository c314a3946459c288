// Failures of the machine: full disks, removed directories, processes that die or share a directory. Nothing throws, no
// files are left over, no wrong bytes are read.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "store/disk/tier.h"
#include "store/store_testing.h"
#include "store/store_worker.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using DiskFaults = StoreTest;
const std::vector<std::string> kNone;

pid_t start_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);
  _exit(work());
}

// The child's exit status; -1 if a signal ended it.
int result_of(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A record whose section sizes, too, depend on its number.
Stored numbered(int n) {
  const uint64_t bits = splitmix(static_cast<uint64_t>(n));
  return make_record(make_key(n), {bits % 5'000, bits >> 20 & 7, (bits >> 30) % 20'000});
}
int number_of(const RecordKey& key) {
  int n = 0;
  std::memcpy(&n, key.content.data(), sizeof(n));
  return n;
}
// Number of records in the directory, each of which must be right; -1 if one is not.
int n_right(KvTier& tier) {
  int n = 0;
  for (const ListedRecord& listed : tier.list()) {
    const ReadAll read = read_all(tier, listed.key);
    if (listed.problem || read.miss || read.sections != numbered(number_of(listed.key)).sections) return -1;
    ++n;
  }
  return n;
}

// --- full disks

TEST_F(DiskFaults, FileSizeLimitOfTheProcess) {
  const pid_t child = start_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{50'000, 50'000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    DiskTier tier(options());
    const Stored small = make_record(make_key(1), {40'000}), large = make_record(make_key(2), {40'000, 40'000});
    if (tier.put(large.record, kNoDeadline).outcome != PutOutcome::kTooLarge) return 2;
    if (!files_in(root_).empty()) return 3;
    if (tier.put(small.record, kNoDeadline).outcome != PutOutcome::kStored) return 4;
    if (read_all(tier, small.record.key).sections != small.sections) return 5;
    if (reason(read_all(tier, large.record.key).miss) != "absent") return 6;
    const TierStats stats = tier.stats();
    const bool counted = stats.n_put[static_cast<size_t>(PutOutcome::kTooLarge)] == 1 && !stats.last_problem.empty();
    return counted ? 0 : 7;
  });
  EXPECT_EQ(result_of(child), 0);
}

#if !defined(__SANITIZE_THREAD__)  // TSan refuses threads after a fork
// The signal that accompanies EFBIG does not end a process whose worker writes.
TEST_F(DiskFaults, FileSizeLimitOfAWorker) {
  const pid_t child = start_child([&] {
    signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{50'000, 50'000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    DiskTier tier(options());
    StoreWorker worker(tier, 1 << 20);
    worker.save(make_record(make_key(1), {100'000}).record);
    worker.flush();
    if (tier.stats().n_put[static_cast<size_t>(PutOutcome::kTooLarge)] != 1) return 2;
    return files_in(root_).empty() ? 0 : 3;
  });
  EXPECT_EQ(result_of(child), 0);
}
#endif

// A file system of its own, unmounted after the test.
class MountedFaults : public StoreTest {
 protected:
  bool mount_here(const char* size) {
    fs::create_directory(root_ / "cache");
    mounted_ = mount("tmpfs", (root_ / "cache").c_str(), "tmpfs", 0, size) == 0;
    return mounted_;
  }
  void TearDown() override {
    if (mounted_) umount2((root_ / "cache").c_str(), MNT_DETACH);
    StoreTest::TearDown();
  }
  bool mounted_ = false;
};

// The cache evicts its own records, least recently used first, also below its limit; never for a record that would not
// fit even then.
TEST_F(MountedFaults, FullDisk) {
  if (!mount_here("size=256k")) GTEST_SKIP() << errno_text("tmpfs cannot be mounted here");
  DiskTier tier(options());
  for (int n = 0; n < 40; ++n) {
    const Stored stored = make_record(make_key(n), {30'000});
    const PutResult result = tier.put(stored.record, kNoDeadline);
    ASSERT_EQ(result.outcome, PutOutcome::kStored) << n << " " << result.detail;
    EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
    if (n > 0) {
      EXPECT_FALSE(verify_record(tier, make_key(n - 1)));
    }
  }
  const int64_t n_evicted = tier.stats().n_evictions;
  EXPECT_GT(n_evicted, 30);
  EXPECT_EQ(static_cast<int64_t>(tier.list().size()), 40 - n_evicted);
  EXPECT_EQ(reason(read_all(tier, make_key(0)).miss), "absent");

  const PutResult result = tier.put(make_record(make_key(100), {300'000}).record, kNoDeadline);
  EXPECT_EQ(result.outcome, PutOutcome::kNoSpace);
  EXPECT_NE(result.detail.find("No space"), std::string::npos) << result.detail;
  EXPECT_EQ(tier.stats().n_evictions, n_evicted);
  EXPECT_EQ(files_in(root_, ".tmp"), kNone);
  EXPECT_EQ(reason(read_all(tier, make_key(100)).miss), "absent");
  EXPECT_FALSE(verify_record(tier, make_key(39)));
}

// The disk is full of other files: one attempt to make room, then the record is not stored.
TEST_F(MountedFaults, DiskFilledByOtherFiles) {
  if (!mount_here("size=256k")) GTEST_SKIP() << errno_text("tmpfs cannot be mounted here");
  DiskTier tier(options());
  ASSERT_TRUE(tier.put(make_record(make_key(1), {30'000}).record, kNoDeadline).there());
  std::ofstream(root_ / "cache" / "others") << std::string(300'000, 'x');  // as much as the disk holds
  EXPECT_EQ(tier.put(make_record(make_key(2), {60'000}).record, kNoDeadline).outcome, PutOutcome::kNoSpace);
  EXPECT_FALSE(verify_record(tier, make_key(1)));
  EXPECT_EQ(tier.put(make_record(make_key(3), {20'000}).record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(reason(read_all(tier, make_key(1)).miss), "absent");
}

TEST_F(MountedFaults, DirectoryBecomesReadOnly) {
  if (!mount_here("size=1m")) GTEST_SKIP() << errno_text("tmpfs cannot be mounted here");
  DiskTier tier(options());
  const Stored stored = make_record(make_key(1), {100});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  ASSERT_EQ(mount("tmpfs", (root_ / "cache").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m"), 0);
  const PutResult result = tier.put(make_record(make_key(2), {100}).record, kNoDeadline);
  EXPECT_EQ(result.outcome, PutOutcome::kIo);
  EXPECT_NE(result.detail.find("Read-only"), std::string::npos) << result.detail;
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);  // still readable
  EXPECT_FALSE(tier.erase(tier.id_of(stored.record.key)));
  EXPECT_EQ(read_all(*std::make_unique<DiskTier>(options()), stored.record.key).sections, stored.sections);
}

std::string trouble_of(DiskTier& tier) {
  tier.probe();
  const TierStats stats = tier.stats();
  return (stats.cannot_read.empty() ? "" : "r ") + stats.cannot_write;
}

TEST_F(MountedFaults, ProbesFindThem) {
  if (!mount_here("size=256k")) GTEST_SKIP() << errno_text("tmpfs cannot be mounted here");
  DiskTier tier(options());
  EXPECT_EQ(trouble_of(tier), "");
  std::ofstream(root_ / "cache" / "others") << std::string(300'000, 'x');
  EXPECT_NE(trouble_of(tier).find("no space: "), std::string::npos);
  EXPECT_FALSE(tier.stats().works());
  fs::remove(root_ / "cache" / "others");
  ASSERT_TRUE(tier.put(make_record(make_key(1), {100'000}).record, kNoDeadline).there());
  EXPECT_TRUE(tier.stats().works());
  std::ofstream(root_ / "cache" / "others") << std::string(300'000, 'x');
  EXPECT_EQ(trouble_of(tier), "");  // it has a record to evict
  ASSERT_EQ(mount("tmpfs", (root_ / "cache").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=256k"), 0);
  EXPECT_NE(trouble_of(tier).find("io error: "), std::string::npos);
  EXPECT_NE(tier.stats().cannot_write.find("Read-only"), std::string::npos);
  EXPECT_EQ(tier.stats().cannot_read, "");
  EXPECT_EQ(tier.stats().n_failed_writes(), 2);
  ASSERT_EQ(mount("tmpfs", (root_ / "cache").c_str(), "tmpfs", MS_REMOUNT, "size=256k"), 0);
  fs::remove(root_ / "cache" / "others");
  EXPECT_EQ(trouble_of(tier), "");
}

TEST_F(DiskFaults, ProbesFindAndForgetThem) {
  DiskTier tier(options());
  EXPECT_EQ(trouble_of(tier), "");
  EXPECT_EQ(files_in(root_), kNone);
  fs::remove_all(root_ / "cache");
  EXPECT_NE(trouble_of(tier).find("r io error: " + (root_ / "cache").string()), std::string::npos);
  EXPECT_FALSE(fs::exists(root_ / "cache"));
  write_file(root_ / "cache", random_bytes(10, 1));
  EXPECT_NE(trouble_of(tier).find("r io error: "), std::string::npos);
  fs::remove(root_ / "cache");
  fs::create_directory(root_ / "cache");
  EXPECT_EQ(trouble_of(tier), "");
  EXPECT_EQ(tier.stats().n_failed(), 2);
}

// --- directories that vanish

TEST_F(DiskFaults, DirectoryIsRemoved) {
  DiskTier tier(options());
  const Stored stored = make_record(make_key(1), {100, 200});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  fs::remove_all(root_ / "cache");
  Bytes to(200);
  EXPECT_FALSE(opened.reader->read(1, to, kNoDeadline));  // an open record can be read to its end
  EXPECT_EQ(to, stored.sections[1]);
  EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "absent");
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kIo);
  EXPECT_FALSE(fs::exists(root_ / "cache"));  // not recreated: its removal may have been intended
  EXPECT_EQ(tier.list().size(), 0u);
  EXPECT_FALSE(tier.erase(tier.id_of(stored.record.key)));
  fs::create_directory(root_ / "cache");
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
}

TEST_F(DiskFaults, FileReplacesTheDirectory) {
  DiskTier tier(options(2'000));
  const Stored stored = make_record(make_key(1), {1'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const fs::path folder = tier.path_of(stored.record.key).parent_path();
  for (const fs::path& place : {folder, root_ / "cache"}) {
    fs::remove_all(place);
    write_file(place, random_bytes(10, 1));
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "io error");
    EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kIo);
    EXPECT_EQ(tier.exists({{stored.record.key}}, kNoDeadline), std::vector<bool>{false});
    EXPECT_EQ(tier.list().size(), 0u);
    EXPECT_EQ(read_file(place), random_bytes(10, 1));
  }
  EXPECT_GT(tier.stats().n_failed(), 0);
}

// --- processes that die, and processes that share

TEST_F(DiskFaults, OnlyDeadWritersFilesAreRemoved) {
  DiskTier first(options());
  const fs::path folder = root_ / "cache" / "ab";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t writer = start_child([&] {
    TemporaryFile file(folder);
    file.write(random_bytes(100, 1), kNoDeadline);
    if (write(ready[1], "x", 1) != 1) return 1;
    while (true) pause();
  });
  char c = 0;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  // One of a process number that is not in use, one of this process, which does not write: both count as left by dead
  // writers.
  write_file(folder / ".999999999-3.tmp", random_bytes(10, 1));
  write_file(folder / ("." + std::to_string(getpid()) + "-9999.tmp"), random_bytes(10, 1));
  write_file(folder / ".notes.tmp", random_bytes(10, 1));  // not a writer's
  ASSERT_EQ(files_in(root_, ".tmp").size(), 4u);
  const DiskTier second(options());
  const std::vector<std::string> left = files_in(root_, ".tmp");
  ASSERT_EQ(left.size(), 2u);
  EXPECT_TRUE(left[0].starts_with("." + std::to_string(writer) + "-")) << left[0];
  EXPECT_EQ(left[1], ".notes.tmp");
  write_file(root_ / "session" / ".999999999-3.tmp", random_bytes(10, 1));
  write_file(root_ / "session" / "session.json", random_bytes(10, 1));
  EXPECT_EQ(remove_stale_files_in(root_ / "session"), 1);
  EXPECT_EQ(remove_stale_files_in(root_ / "none"), 0);
  EXPECT_EQ(files_in(root_ / "session"), std::vector<std::string>{"session.json"});
  kill(writer, SIGKILL);
  EXPECT_EQ(result_of(writer), -1);
  EXPECT_EQ(files_in(root_, ".tmp").size(), 2u);
  const DiskTier third(options());
  EXPECT_EQ(files_in(root_, ".tmp"), std::vector<std::string>{".notes.tmp"});
  close(ready[0]);
  close(ready[1]);
}

// Killed many times, at any moment: every record found afterwards is whole, and an unfinished one leaves no file.
// VLCACHE_TEST_KILLS: the number of kills.
TEST_F(DiskFaults, KilledWhileSaving) {
  const char* const asked = std::getenv("VLCACHE_TEST_KILLS");
  const int n_kills = asked != nullptr ? std::atoi(asked) : 100;
  int n_interrupted = 0, n_whole = 0;
  const double put_us = [&] {  // measured on this machine, now
    DiskTier tier(options(200'000));
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) tier.put(numbered(i).record, kNoDeadline);
    return ms_since(start) * 1000 / 20;
  }();
  fs::remove_all(root_ / "cache");
  for (int round = 0; round < n_kills; ++round) {
    int begun[2];
    ASSERT_EQ(pipe(begun), 0);
    const pid_t child = start_child([&] {
      DiskTier tier(options(200'000));
      if (write(begun[1], "x", 1) != 1) return 1;
      for (int i = 0;; ++i) tier.put(numbered(round * 100'000 + i).record, kNoDeadline);
    });
    close(begun[1]);
    char c = 0;
    ASSERT_EQ(read(begun[0], &c, 1), 1);
    close(begun[0]);
    usleep(static_cast<useconds_t>(splitmix(static_cast<uint64_t>(round)) % static_cast<uint64_t>(10 * put_us)));
    kill(child, SIGKILL);
    ASSERT_EQ(result_of(child), -1);
    n_interrupted += !files_in(root_, ".tmp").empty();
    DiskTier tier(options(200'000));
    ASSERT_EQ(files_in(root_, ".tmp"), kNone);
    const int n = n_right(tier);
    ASSERT_GE(n, 0) << "a record that is not what was stored, after kill " << round;
    n_whole += n;
  }
  EXPECT_GT(n_interrupted, 0);  // else no save was interrupted and this has tested nothing
  EXPECT_GT(n_whole, n_kills);
}

TEST_F(DiskFaults, ProcessesShareADirectory) {
  constexpr int kProcesses = 3, kOperations = 250, kLimit = 300'000;  // a third of the bytes of all records
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(start_child([&] {
      DiskTier tier(options(kLimit));
      for (int i = 0; i < kOperations; ++i) {
        const uint64_t bits = splitmix(static_cast<uint64_t>(i * kProcesses + process));
        const Stored stored = numbered(static_cast<int>(bits % 60));
        if (bits >> 40 & 1) {
          if (!tier.put(stored.record, kNoDeadline).there()) return 1;
        } else {
          const ReadAll read = read_all(tier, stored.record.key);
          if (read.miss ? read.miss->reason != MissReason::kAbsent : read.sections != stored.sections) return 2;
        }
      }
      const TierStats stats = tier.stats();
      return stats.n_hits > 0 && stats.n_evictions > 0 && stats.n_failed() == 0 ? 0 : 3;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
  EXPECT_EQ(files_in(root_, ".tmp"), kNone);
  DiskTier tier(options(kLimit));
  EXPECT_LE(tier.used_bytes(), kLimit + kProcesses * (kLimit / 16 + 25'000));
  EXPECT_GT(n_right(tier), 0);
}

}  // namespace
}  // namespace vlcache
