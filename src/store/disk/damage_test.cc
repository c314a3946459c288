// Damaged files (flipped, cut, mixed, forged, replaced): reading one is a miss that removes the file, or returns the
// right bytes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "store/disk/tier.h"
#include "store/store_testing.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

class DiskDamage : public StoreTest, public testing::WithParamInterface<const char*> {  // the salt
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    options_ = options();
    options_.salt = GetParam();
    tier_ = std::make_unique<DiskTier>(options_);
    ASSERT_TRUE(tier_->put(stored_.record, kNoDeadline).there());
    path_ = tier_->path_of(stored_.record.key);
    file_ = read_file(path_);
    RecordSeal seal(options_.salt);
    const auto why = parse_header(seal, file_, std::ssize(file_), &stored_.record.key, header_);
    ASSERT_EQ(reason(why), "hit");
  }

  // Writes these bytes at the record's path and reads. A corrupt file must be removed afterwards, and a new record must
  // be stored in its place.
  std::string reading(const Bytes& bytes) {
    write_file(path_, bytes);
    const ReadAll read = read_all(*tier_, stored_.record.key);
    if (!read.miss) {
      EXPECT_EQ(read.sections, stored_.sections);
    }
    EXPECT_EQ(fs::exists(path_), !read.miss);
    // Sections before the bad one were handed out: they must be right.
    for (size_t i = 0; read.miss && i + 1 < read.sections.size(); ++i) EXPECT_EQ(read.sections[i], stored_.sections[i]);
    return reason(read.miss);
  }

  DiskTierOptions options_;
  std::unique_ptr<DiskTier> tier_;
  Stored stored_ = make_record(make_key(1), {300, 0, 77, 512});
  fs::path path_;
  Bytes file_;
  RecordHeader header_;
};

TEST_P(DiskDamage, FlippedByteIsAMiss) {
  ASSERT_EQ(reading(file_), "hit");
  int64_t n_removed = 0;
  std::set<std::string> reasons;
  for (size_t at = 0; at < file_.size(); ++at) {
    for (const int flip : {1 << at % 8, 0xff}) {
      Bytes flipped = file_;
      flipped[at] ^= static_cast<std::byte>(flip);
      const std::string why = reading(flipped);
      ASSERT_NE(why, "hit") << at;
      if (static_cast<int64_t>(at) >= header_.bytes()) {
        ASSERT_EQ(why, "checksum") << at;
      }
      reasons.insert(why);
      ++n_removed;
    }
  }
  EXPECT_EQ(tier_->stats().n_removed, n_removed);
  EXPECT_EQ(tier_->stats().n_failed(), n_removed);
  EXPECT_TRUE(reasons.contains("malformed") && reasons.contains("other version") && reasons.contains("other tenant"));
  EXPECT_TRUE(tier_->put(stored_.record, kNoDeadline).there());
  EXPECT_EQ(reading(read_file(path_)), "hit");
}

TEST_P(DiskDamage, TruncatedOrExtendedFileIsAMiss) {
  std::set<size_t> cuts = {0, 1, 8, 16, 95, 96, 97, file_.size() - 1};
  for (size_t i = 0; i <= stored_.sections.size(); ++i) {
    const auto at = static_cast<size_t>(header_.section_offset(i));
    cuts.insert({at - 1, at, at + 1});
  }
  for (size_t n = 0; n < static_cast<size_t>(header_.bytes()); ++n) cuts.insert(n);
  cuts.erase(file_.size());
  for (const size_t n : cuts) {
    Bytes cut = file_;
    cut.resize(n);  // also longer than it was, by a zero
    EXPECT_EQ(reading(cut), "truncated") << n;
  }
}

// Zeros in place of blocks that never reached the disk.
TEST_P(DiskDamage, HolesAreMisses) {
  for (size_t at = 0; at + 64 <= file_.size(); at += 64) {
    Bytes holed = file_;
    std::fill_n(holed.begin() + static_cast<int64_t>(at), 64, std::byte{0});
    EXPECT_NE(reading(holed), "hit") << at;
  }
  EXPECT_EQ(reading(Bytes(file_.size())), "malformed");
}

TEST_P(DiskDamage, FileTruncatedWhileItIsReadIsAMiss) {
  const OpenedRecord opened = tier_->open(stored_.record.key, kNoDeadline);
  ASSERT_TRUE(opened.reader);
  fs::resize_file(path_, static_cast<uintmax_t>(header_.section_offset(2) + 5));
  Bytes first(300), third(77);
  EXPECT_FALSE(opened.reader->read(0, first, kNoDeadline));
  EXPECT_EQ(first, stored_.sections[0]);
  EXPECT_EQ(reason(opened.reader->read(2, third, kNoDeadline)), "truncated");
  EXPECT_FALSE(fs::exists(path_));
}

// Another record under this one's file name: another kind, model, layout or image.
TEST_P(DiskDamage, RecordUnderAnotherNameIsAMiss) {
  std::map<std::string, RecordKey> others;
  for (const char* name : {"other kind", "other model", "other layout", "other key"}) others[name] = stored_.record.key;
  others["other kind"].kind = RecordKind::kPrefix;
  others["other model"].model[0] ^= 1;
  others["other layout"].layout = "f32 22x4x64";
  others["other key"].content[31] ^= 1;
  for (const auto& [name, key] : others) {
    ASSERT_TRUE(tier_->put(make_record(key, {300, 0, 77, 512}).record, kNoDeadline).there());
    EXPECT_EQ(reading(read_file(tier_->path_of(key))), name);
    EXPECT_TRUE(fs::exists(tier_->path_of(key)));  // the other record is intact under its own name
  }
}

// Two records of one key (another time, other bytes) cannot be mixed, nor sections change places.
TEST_P(DiskDamage, MixedRecords) {
  Stored newer = make_record(stored_.record.key, {300, 0, 77, 512});
  std::vector<Bytes> other_bytes = {random_bytes(300, 99), {}, random_bytes(77, 98), random_bytes(512, 97)};
  for (size_t i = 0; i < 4; ++i) newer.record.sections[i] = other_bytes[i];
  fs::remove(path_);
  ASSERT_EQ(tier_->put(newer.record, kNoDeadline).outcome, PutOutcome::kStored);
  const Bytes other = read_file(path_);
  ASSERT_EQ(other.size(), file_.size());
  for (size_t i : {size_t{0}, size_t{2}, size_t{3}}) {
    Bytes mixed = file_;
    const auto begin = header_.section_offset(i), end = header_.section_offset(i + 1);
    std::copy(other.begin() + begin, other.begin() + end, mixed.begin() + begin);
    EXPECT_EQ(reading(mixed), "checksum") << i;
  }
  Bytes mixed = other;
  std::copy(file_.begin(), file_.begin() + header_.bytes(), mixed.begin());
  EXPECT_EQ(reading(mixed), "checksum");
}

// A forger with write access knows the format and the key, but not the salt.
TEST_P(DiskDamage, ForgedRecordIsAMiss) {
  Stored forged = make_record(stored_.record.key, {300, 0, 77, 512});
  const Bytes lie = random_bytes(300, 5);
  forged.record.sections[0] = lie;
  for (const char* guess : {"", "guess"}) {
    const RecordSeal seal(guess);
    Bytes bytes = encode_header(seal, make_header(seal, forged.record));
    for (const auto& section : forged.record.sections) bytes.insert(bytes.end(), section.begin(), section.end());
    Bytes disguised = bytes;  // with the tenant mark, which every record of the tenant shows
    std::copy(file_.begin() + 80, file_.begin() + 96, disguised.begin() + 80);
    if (*GetParam() != 0) {
      EXPECT_EQ(reading(bytes), "other tenant");
      EXPECT_EQ(reading(disguised), "checksum");
    } else if (*guess != 0) {
      EXPECT_EQ(reading(bytes), "other tenant");
    }
  }
}

// The reader finds a bad file that another process has rewritten meanwhile: the new file stays.
TEST_P(DiskDamage, RewrittenRecordIsKept) {
  Bytes flipped = file_;
  flipped.back() ^= std::byte{1};
  write_file(path_, flipped);
  const OpenedRecord opened = tier_->open(stored_.record.key, kNoDeadline);
  ASSERT_TRUE(opened.reader);
  fs::remove(path_);
  DiskTier other(options_);
  ASSERT_EQ(other.put(stored_.record, kNoDeadline).outcome, PutOutcome::kStored);
  Bytes to(512);
  EXPECT_EQ(reason(opened.reader->read(3, to, kNoDeadline)), "checksum");
  EXPECT_EQ(reading(read_file(path_)), "hit");
}

// Not regular files: neither followed nor waited for.
TEST_P(DiskDamage, IrregularFilesAreMisses) {
  const auto read = [&] { return reason(read_all(*tier_, stored_.record.key).miss); };
  const fs::path elsewhere = root_ / "elsewhere";
  fs::rename(path_, elsewhere);
  fs::create_symlink(elsewhere, path_);
  EXPECT_EQ(read(), "io error");
  EXPECT_EQ(tier_->exists({{stored_.record.key}}, kNoDeadline), std::vector<bool>{false});
  EXPECT_EQ(tier_->put(stored_.record, kNoDeadline).outcome, PutOutcome::kStored);  // replaces the link
  EXPECT_EQ(read(), "hit");
  EXPECT_EQ(read_file(elsewhere), file_);
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(read(), "io error");
  fs::remove(path_);
  fs::create_directory(path_);
  EXPECT_EQ(read(), "io error");
  EXPECT_EQ(tier_->put(stored_.record, kNoDeadline).outcome, PutOutcome::kIo);
  EXPECT_EQ(files_in(root_, ".tmp"), std::vector<std::string>());
  EXPECT_EQ(tier_->list().size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Salts, DiskDamage, testing::Values("", "salt"),
                         [](const auto& info) { return *info.param == 0 ? "None" : "Salt"; });

// A long section with single bits flipped throughout.
TEST_F(StoreTest, FlipsAcrossALongSection) {
  DiskTier tier(options());
  const Stored stored = make_record(make_key(1), {10, 2'500'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const fs::path path = tier.path_of(stored.record.key);
  const Bytes file = read_file(path);
  for (uint64_t i = 0; i < 60; ++i) {
    Bytes flipped = file;
    flipped[file.size() - 1 - splitmix(i) % 2'500'000] ^= static_cast<std::byte>(1 << i % 8);
    write_file(path, flipped);
    const ReadAll read = read_all(tier, stored.record.key);
    ASSERT_EQ(reason(read.miss), "checksum");
    EXPECT_EQ(read.sections[0], stored.sections[0]);
  }
}

}  // namespace
}  // namespace vlcache
