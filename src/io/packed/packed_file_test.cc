// Packed files: a reader gets the written bytes, or a reason; a folder of them keeps its limit.
#include "io/packed/packed_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/at.h"
#include "base/json.h"
#include "base/os/threads.h"
#include "base/splitmix.h"
#include "io/packed/packed_cache.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::byte> some_bytes(int64_t n, uint64_t seed) {
  std::vector<std::byte> bytes(at(n));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(splitmix(seed + i));
  return bytes;
}

std::vector<std::byte> bytes_of(const Buffer& b) { return {b.data(), b.data() + b.bytes()}; }

// Of this process, of files whose name has `part` in it.
int64_t mapped_bytes_of(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(part) == std::string::npos) continue;
    const size_t dash = line.find('-');
    bytes += static_cast<int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) -
                                  std::stoull(line.substr(0, dash), nullptr, 16));
  }
  return bytes;
}

class PackedTest : public testing::Test {
 protected:
  PackedTest()
      : dir_(fs::temp_directory_path() / ("vlcache-packed-" + std::to_string(::getpid()) + "-" +
                                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(dir_);
  }
  ~PackedTest() override {
    fs::remove_all(dir_);
    umask(umask_before_);
  }

  // Odd sizes: empty, less than a page, several pieces and shares.
  void write(const fs::path& path) {
    PackedFileWriter writer(dir_);
    writer.add("none", nullptr, {});
    writer.add("small", {{"rows", 3}}, small_);
    writer.add("large", "x", large_);
    writer.add("small", "again", large_);
    writer.commit(path, "key", {{"model", "m"}});
    ASSERT_EQ(writer.problem(), "");
  }
  std::string read_error(const fs::path& path) {
    return error_of([&] { PackedFile(path).read(); });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_)) found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }
  // A cache of this folder, whose lines go to lines_.
  PackedCache cache(const std::string& place, const std::string& key = "key", int64_t max_bytes = 1 << 30,
                    bool share = false) {
    PackedCacheOptions options{
        .folder = dir_, .off_reason = "", .max_bytes = max_bytes, .half_of_free = false, .share = share};
    options.say = [this](const std::string& line) { lines_.push_back(line); };
    return {options, {.place = place, .key = key}};
  }
  bool store(PackedCache& cache) {
    cache.begin();
    cache.add("small", 1, small_);
    cache.add("large", 2, large_);
    return cache.commit({{"model", "m"}});
  }

  const mode_t umask_before_ = umask(022);  // files that a test writes by itself are trusted
  fs::path dir_;
  const std::vector<std::byte> small_ = some_bytes(77, 1), large_ = some_bytes((5 << 20) + 3, 2);
  std::vector<std::string> lines_;
};

TEST_F(PackedTest, ReadsWhatWasWritten) {
  const fs::path path = dir_ / "a.vlw";
  write(path);
  EXPECT_THAT(names(), ElementsAre("a.vlw"));
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  const PackedFile file(path);
  EXPECT_EQ(file.bytes(), status.st_size);
  EXPECT_EQ(file.index().key, "key");
  EXPECT_EQ(file.index().about.at("model"), "m");
  int64_t done = 0, total = 0;
  const std::vector<Buffer> arrays = file.read([&](int64_t d, int64_t t) { done = d, total = t; });
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, std::ssize(small_) + std::ssize(large_));
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_EQ(arrays[0].bytes(), 0);
  EXPECT_EQ(bytes_of(arrays[1]), small_);
  EXPECT_EQ(bytes_of(arrays[2]), large_);
  EXPECT_EQ(file.index().records[1].about.at("rows"), 3);
}

// Every byte that means something is under a checksum: the head, the arrays, the index.
TEST_F(PackedTest, RefusesWhatIsDamaged) {
  const fs::path path = dir_ / "a.vlw", damaged = dir_ / "b.vlw";
  write(path);
  const std::string whole = read_text_file(path);
  const PackedFile file(path);
  const auto place = [&](size_t record, int64_t more) { return at(file.index().records[record].at + more); };
  for (const size_t where :
       {size_t{0}, size_t{8}, size_t{17}, size_t{24}, size_t{33}, size_t{41}, place(1, 0), place(1, 76), place(2, 0),
        place(2, 3 << 20), place(2, std::ssize(large_) - 1), whole.size() - 1, whole.size() - 40}) {
    std::string text = whole;
    text[where] ^= 4;
    std::ofstream(damaged, std::ios::binary) << text;
    EXPECT_THAT(read_error(damaged), HasSubstr("b.vlw")) << where;
  }
  for (const size_t length : {size_t{0}, size_t{47}, size_t{48}, size_t{4096}, place(2, 9), whole.size() - 1}) {
    std::ofstream(damaged, std::ios::binary) << whole.substr(0, length);
    EXPECT_THAT(read_error(damaged), HasSubstr("b.vlw")) << length;
  }
  std::ofstream(damaged, std::ios::binary) << whole << "x";
  EXPECT_THAT(read_error(damaged), HasSubstr("truncated?"));
  EXPECT_THAT(read_error(dir_ / "none"), HasSubstr("No such file"));
  EXPECT_THAT(read_error(dir_), HasSubstr("expected a regular file"));
  EXPECT_EQ(read_error(path), "no error");
  fs::resize_file(path, place(2, 9));  // while it is open
  EXPECT_THAT(error_of([&] { file.read(); }), HasSubstr("a.vlw"));
}

// What a user other than this one or root may have written is not used; what this program writes is, under every umask.
TEST_F(PackedTest, RefusesWhatAnotherUserMayHaveWritten) {
  const fs::path path = dir_ / "a.vlw";
  for (const mode_t mask : {0, 002, 022, 077}) {
    const mode_t before = umask(mask);
    write(path);
    umask(before);
    EXPECT_EQ(read_error(path), "no error") << mask;
  }
  for (const mode_t mode : {0620, 0602, 0666, 0777, 0664}) {
    chmod(path.c_str(), mode);
    EXPECT_THAT(read_error(path), HasSubstr("a.vlw: not trusted: ")) << mode;
  }
  for (const mode_t mode : {0400, 0600, 0644, 0755}) {
    chmod(path.c_str(), mode);
    EXPECT_EQ(read_error(path), "no error") << mode;
  }
  chmod(dir_.c_str(), 0777);  // the file counts, not its folder
  EXPECT_EQ(read_error(path), "no error");
  PackedCache reader = cache("model");
  EXPECT_TRUE(store(reader));
  chmod(reader.path().c_str(), 0660);
  EXPECT_THAT(list_packed_files(dir_)[0].problem, HasSubstr("its group may write to it"));
  EXPECT_FALSE(reader.read({}));
  EXPECT_THAT(lines_.back(), HasSubstr("not trusted: its group may write to it; the model is quantised again"));
  EXPECT_TRUE(store(reader));
  EXPECT_TRUE(reader.read({}));
}

TEST_F(PackedTest, FilesOfTheUserAndOfRootAreUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  constexpr uid_t kNobody = 65534, kOther = 4711;
  const fs::path path = dir_ / "a.vlw";
  write(path);
  chmod(path.c_str(), 0644);
  chmod(dir_.c_str(), 0755);
  const auto used_by_nobody = [&](uid_t owner) {
    if (chown(path.c_str(), owner, owner) != 0) return false;
    const pid_t child = fork();
    if (child == 0) {
      if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(2);
      _exit(error_of([&] { PackedFile file(path); }) == "no error" ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << "the folder of temporary files must be readable";
    return WEXITSTATUS(status) == 0;
  };
  EXPECT_TRUE(used_by_nobody(0));
  EXPECT_TRUE(used_by_nobody(kNobody));
  EXPECT_FALSE(used_by_nobody(kOther));
  EXPECT_THAT(read_error(path), HasSubstr("not trusted: it belongs to user 4711, not to root"));
}

TEST_F(PackedTest, MapsWhatWasWritten) {
  const fs::path path = dir_ / "a.vlw";
  write(path);
  std::optional<PackedFile> file(path);
  int64_t done = 0, total = 0;
  std::vector<Buffer> arrays = file->map([&](int64_t d, int64_t t) { done = d, total = t; });
  file.reset();
  EXPECT_EQ(done, std::ssize(small_) + std::ssize(large_));
  EXPECT_EQ(total, done);
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_TRUE(arrays[0].empty());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arrays[1].data()) % 4096, 0u);
  // It stays the opened file while its name is another file's or none's.
  PackedFileWriter other(dir_);
  other.add("small", nullptr, large_);
  other.commit(path, "key", nullptr);
  EXPECT_EQ(bytes_of(arrays[1]), small_);
  fs::remove(path);
  arrays.erase(arrays.begin(), arrays.begin() + 2);  // the last part keeps the mapping
  EXPECT_EQ(bytes_of(arrays[0]), large_);
  EXPECT_GT(mapped_bytes_of("a.vlw"), 5 << 20);
  arrays.clear();
  EXPECT_EQ(mapped_bytes_of("a.vlw"), 0);
}

TEST_F(PackedTest, RefusesToMapWhatIsDamaged) {
  const fs::path path = dir_ / "a.vlw";
  write(path);
  const PackedFile file(path);
  std::string text = read_text_file(path);
  text[at(file.index().records[2].at + (3 << 20))] ^= 4;
  std::ofstream(dir_ / "b.vlw", std::ios::binary) << text;
  EXPECT_THAT(error_of([&] { PackedFile(dir_ / "b.vlw").map(); }), HasSubstr("the checksum of \"large\" differs"));
  fs::resize_file(path, file.index().records[2].at + 9);  // while it is open: reading ends, the process does not
  EXPECT_THAT(error_of([&] { file.map(); }), HasSubstr("a.vlw: Input/output error"));
}

// Bytes that are touched after the file was cut short.
void read_beyond_the_end(const fs::path& path) {
  const std::vector<Buffer> arrays = PackedFile(path).map();
  fs::resize_file(path, 8192);
  std::atomic<int> sum{0};
  parallel_for(2, [&](int64_t i, int) { sum += static_cast<int>(arrays[2].data()[i * (3 << 20)]); });
  std::exit(sum & 1);
}

void fault_elsewhere(const fs::path& path) {
  signal(SIGBUS, SIG_DFL);  // the handler before the mapping, instead of a sanitizer's handler
  const std::vector<Buffer> arrays = PackedFile(path).map();
  raise(SIGBUS);
}

TEST_F(PackedTest, TruncationEndsTheProcessWithALine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const fs::path path = fs::temp_directory_path() / "vlcache-packed-truncated.vlw";
  write(path);
  EXPECT_EXIT(read_beyond_the_end(path), testing::ExitedWithCode(2),
              "^vlcache: [^\n]*vlcache-packed-truncated.vlw: [^\n]*was cut short[^\n]*\n$");
  write(path);
  EXPECT_EXIT(fault_elsewhere(path), testing::KilledBySignal(SIGBUS), "");
  fs::remove(path);
}

TEST_F(PackedTest, CacheSharesWhereItIsAskedTo) {
  PackedCache writer = cache("model"), reader = cache("model", "key", 1 << 30, /*share=*/true);
  EXPECT_FALSE(reader.read({}));
  EXPECT_TRUE(store(writer));
  const auto own = writer.read({}), shared = reader.read({});
  ASSERT_TRUE(own && shared);
  EXPECT_FALSE(own->shared);
  EXPECT_TRUE(shared->shared);
  EXPECT_THAT(lines_.back(), HasSubstr("shared with other processes, mapped from " + reader.path().string()));
  EXPECT_EQ(bytes_of(shared->arrays[1]), bytes_of(own->arrays[1]));
  std::fstream(reader.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(4096).put('x');
  EXPECT_FALSE(reader.read({}));
  EXPECT_THAT(lines_.back(), HasSubstr("quantised again"));
}

TEST_F(PackedTest, CacheKeepsOneFileOfEachPlaceForOneKey) {
  PackedCache first = cache("model"), other = cache("model", "other key");
  EXPECT_FALSE(first.read({}));
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_TRUE(store(first));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("written to " + first.path().string())));
  const auto found = first.read({});
  ASSERT_TRUE(found);
  EXPECT_EQ(bytes_of(found->arrays[1]), large_);
  EXPECT_EQ(other.path(), first.path());
  EXPECT_FALSE(other.read({}));
  EXPECT_THAT(lines_.back(), HasSubstr("other contents of the model's files"));
  EXPECT_TRUE(store(other));
  EXPECT_THAT(names(), ElementsAre(first.path().filename()));
  EXPECT_TRUE(other.read({}));
  EXPECT_FALSE(cache("another model").read({}));
  std::ofstream(other.path(), std::ios::app) << "x";
  const std::vector<PackedListing> files = list_packed_files(dir_);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(files[0].problem, HasSubstr("truncated?"));
  EXPECT_FALSE(other.read({}));
  EXPECT_THAT(lines_.back(), HasSubstr("quantised again"));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PackedTest, TheLeastRecentlyUsedIsRemovedFirst) {
  constexpr int64_t kFile = (5 << 20) + (20 << 10);
  PackedCache a = cache("a", "key", 2 * kFile), b = cache("b", "key", 2 * kFile), c = cache("c", "key", 2 * kFile);
  EXPECT_TRUE(store(a));
  EXPECT_TRUE(store(b));
  const timespec hour_ago[2] = {{0, UTIME_OMIT}, {time(nullptr) - 3600, 0}};
  for (const PackedCache* one : {&a, &b}) utimensat(AT_FDCWD, one->path().c_str(), hour_ago, 0);
  EXPECT_TRUE(a.read({}));  // uses it
  EXPECT_EQ(list_packed_files(dir_)[0].path, b.path());
  EXPECT_TRUE(store(c));
  EXPECT_TRUE(a.read({}));
  EXPECT_FALSE(b.read({}));
  PackedCache larger = cache("d", "key", 5 << 20);
  EXPECT_FALSE(store(larger));
  EXPECT_THAT(lines_.back(), HasSubstr("not stored: more than the 0.01 GB"));
  EXPECT_THAT(names(), IsEmpty());  // of a smaller limit: the others went first
}

TEST_F(PackedTest, AFailureToWriteLeavesNoFile) {
  // A file size limit stands in for a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const rlim_t bytes : {rlim_t{4096}, rlim_t{3 << 20}, rlim_t{(5 << 20) + 12300}}) {  // head, array, index
    PackedCache limited = cache("a");
    const rlimit small = {bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const bool stored = store(limited);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_FALSE(stored) << bytes;
    EXPECT_THAT(lines_.back(), HasSubstr("not stored: ")) << bytes;
    EXPECT_THAT(names(), IsEmpty()) << bytes;
  }
  EXPECT_EQ(lines_.size(), 3u);  // one for each
  std::ofstream(dir_ / "file") << "x";
  PackedCacheOptions below{.folder = dir_ / "file" / "folder", .off_reason = ""};
  below.say = [this](const std::string& line) { lines_.push_back(line); };
  PackedCache nowhere(below, {.place = "a", .key = "key"});
  EXPECT_FALSE(nowhere.read({}));
  EXPECT_FALSE(store(nowhere));
  EXPECT_THAT(lines_.back(), HasSubstr("Not a directory"));
}

TEST_F(PackedTest, TwoWritersAndOneThatIsKilled) {
  PackedCache one = cache("a"), two = cache("a");
  one.begin();
  two.begin();
  one.add("small", 1, small_);
  two.add("small", 2, small_);
  EXPECT_TRUE(one.commit({}));
  EXPECT_TRUE(two.commit({}));
  ASSERT_TRUE(one.read({}));
  EXPECT_EQ(one.read({})->index.records[0].about, 2);
  const pid_t child = fork();
  if (child == 0) {
    PackedCache killed = cache("b");
    killed.begin();
    killed.add("large", 1, small_);
    kill(getpid(), SIGKILL);
  }
  ASSERT_GT(child, 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(names().size(), 2u);
  PackedCache living = cache("c");
  living.begin();
  EXPECT_EQ(names().size(), 2u);  // its own; the other writer's was removed
  const PackedRemoval removed = clear_packed_files(dir_);
  EXPECT_EQ(removed.n_files, 1);
  EXPECT_GT(removed.bytes, std::ssize(small_));
  EXPECT_TRUE(living.commit({}));  // clearing does not disturb a writer
  EXPECT_EQ(names().size(), 1u);
}

}  // namespace
}  // namespace vlcache
