// Records in a directory, one process, a healthy machine: round trips, order of eviction, refusals.
#include "store/disk/tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "base/error.h"
#include "store/store_testing.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using DiskTierTest = StoreTest;

int64_t count(const TierStats& stats, MissReason reason) { return stats.n_missed[static_cast<size_t>(reason)]; }
int64_t count(const TierStats& stats, PutOutcome outcome) { return stats.n_put[static_cast<size_t>(outcome)]; }

PutOutcome put(KvTier& tier, const Stored& stored) { return tier.put(stored.record, kNoDeadline).outcome; }

// Sections of any size: none, empty, odd, larger than a piece of reading.
TEST_F(DiskTierTest, StoredRecordIsReadBack) {
  const std::vector<std::vector<size_t>> shapes = {{}, {0}, {1}, {0, 0, 5, 0}, {17, 4096, 4097, 65537}, {3'000'001, 9}};
  for (const char* salt : {"", "salt"}) {
    DiskTierOptions o = options();
    o.salt = salt;
    DiskTier tier(o);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Stored stored = make_record(make_key(static_cast<int>(i)), shapes[i]);
      EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "absent");
      EXPECT_EQ(put(tier, stored), PutOutcome::kStored);
      EXPECT_EQ(put(tier, stored), PutOutcome::kPresent);
      const ReadAll read = read_all(tier, stored.record.key);
      EXPECT_EQ(reason(read.miss), "hit");
      EXPECT_EQ(read.sections, stored.sections);
      EXPECT_FALSE(verify_record(tier, stored.record.key));
      // Another tier on the same directory, as after a restart, needs no index.
      EXPECT_EQ(read_all(*std::make_unique<DiskTier>(o), stored.record.key).sections, stored.sections);
    }
    const TierStats stats = tier.stats();
    const auto n = std::ssize(shapes);
    EXPECT_EQ(stats.n_hits, 2 * n);
    EXPECT_EQ(count(stats, MissReason::kAbsent), n);
    EXPECT_EQ(count(stats, PutOutcome::kStored), n);
    EXPECT_EQ(count(stats, PutOutcome::kPresent), n);
    EXPECT_EQ(stats.bytes_read, 2 * stats.bytes_written);
    EXPECT_EQ(stats.bytes_written, 1 + 5 + 17 + 4096 + 4097 + 65537 + 3'000'001 + 9);
    EXPECT_EQ(stats.n_failed(), 0);
    EXPECT_EQ(stats.last_problem, "");
  }
}

TEST_F(DiskTierTest, ManySectionsInAnyOrder) {
  DiskTier tier(options());
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 300; ++i) sizes.push_back(i % 5 * 11);  // a header of more than one read
  const Stored stored = make_record(make_key(1), sizes);
  ASSERT_EQ(put(tier, stored), PutOutcome::kStored);
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  ASSERT_TRUE(opened.reader);
  for (const int32_t i : {299, 4, 0, 4, 123}) {
    Bytes to(sizes[static_cast<size_t>(i)]);
    EXPECT_FALSE(opened.reader->read(i, to, kNoDeadline));
    EXPECT_EQ(to, stored.sections[static_cast<size_t>(i)]);
  }
}

// Under the same key, but of no use to any reader: it has to be removed, or the right one would never be written.
TEST_F(DiskTierTest, SectionsOfOtherSizes) {
  DiskTier tier(options());
  const Stored stored = make_record(make_key(1), {10, 20});
  for (const auto& [section, bytes] : {std::pair{0, 9}, {0, 11}, {2, 0}, {-1, 0}}) {
    ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
    const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
    ASSERT_TRUE(opened.reader);
    Bytes to(static_cast<size_t>(bytes), std::byte{0x55});
    EXPECT_EQ(reason(opened.reader->read(section, to, kNoDeadline)), "other layout") << section;
    EXPECT_TRUE(std::ranges::all_of(to, [](std::byte b) { return b == std::byte{0x55}; }));
    EXPECT_EQ(files_in(root_), std::vector<std::string>());
  }
}

TEST_F(DiskTierTest, FileNamesHideKeysAndFilesArePrivate) {
  DiskTier tier(options());
  const Stored stored = make_record(make_key(1), {10});
  ASSERT_EQ(put(tier, stored), PutOutcome::kStored);
  const fs::path path = tier.path_of(stored.record.key);
  EXPECT_EQ(files_in(root_), std::vector<std::string>{hex(tier.id_of(stored.record.key)) + ".vlr"});
  EXPECT_EQ(path.parent_path().filename().string(), path.filename().string().substr(0, 2));
  const auto mode = [](const fs::path& p) { return static_cast<unsigned>(fs::status(p).permissions()); };
  EXPECT_EQ(mode(path), 0600u);
  EXPECT_EQ(mode(path.parent_path()), 0700u);
  EXPECT_EQ(mode(root_ / "cache"), 0700u);
}

TEST_F(DiskTierTest, OtherKeysAreAbsentAndEraseRemovesOne) {
  DiskTier tier(options());
  std::vector<RecordKey> keys;
  for (int i = 0; i < 4; ++i) keys.push_back(make_key(i));
  keys[1] = keys[0];
  keys[1].kind = RecordKind::kPrefix;
  keys[2] = keys[0];
  keys[2].layout = "f32 22x4x64";
  keys[3] = keys[0];
  keys[3].model[15] = 0;
  ASSERT_EQ(put(tier, make_record(keys[0], {10})), PutOutcome::kStored);
  EXPECT_EQ(tier.exists(keys, kNoDeadline), (std::vector<bool>{true, false, false, false}));
  for (int i = 1; i < 4; ++i)
    EXPECT_EQ(reason(tier.open(keys[static_cast<size_t>(i)], kNoDeadline).miss), "absent") << i;
  for (const RecordKey& key : keys) tier.put(make_record(key, {10}).record, kNoDeadline);
  EXPECT_TRUE(tier.erase(tier.id_of(keys[2])));
  EXPECT_FALSE(tier.erase(tier.id_of(keys[2])));
  EXPECT_EQ(tier.exists(keys, kNoDeadline), (std::vector<bool>{true, true, false, true}));
}

TEST_F(DiskTierTest, TenantsDoNotSeeEachOther) {
  DiskTierOptions o = options();
  DiskTier open(o);
  o.salt = "a";
  DiskTier a(o);
  o.salt = "b";
  DiskTier b(o);
  const Stored stored = make_record(make_key(1), {10});
  ASSERT_EQ(put(a, stored), PutOutcome::kStored);
  EXPECT_EQ(reason(read_all(b, stored.record.key).miss), "absent");
  EXPECT_EQ(reason(read_all(open, stored.record.key).miss), "absent");
  ASSERT_EQ(put(open, stored), PutOutcome::kStored);
  // A writer with access to the directory, but without the salt, puts a record under b's name.
  for (DiskTier* const theirs : {&a, &open}) {
    fs::create_directories(b.path_of(stored.record.key).parent_path());
    fs::copy_file(theirs->path_of(stored.record.key), b.path_of(stored.record.key));
    EXPECT_EQ(reason(read_all(b, stored.record.key).miss), "other tenant");
    EXPECT_FALSE(fs::exists(b.path_of(stored.record.key)));
  }
  EXPECT_EQ(read_all(a, stored.record.key).sections, stored.sections);  // unchanged
  EXPECT_EQ(read_all(open, stored.record.key).sections, stored.sections);
}

// Ids of 0 or 4 bits: every key meets another one's record, and none accepts it as its own.
// Without a salt, a record that another user may have written is a miss, is left in place, and is replaced by put().
TEST_F(DiskTierTest, RecordsThatOthersMayWriteAreForeign) {
  for (const char* salt : {"", "salt"}) {
    DiskTierOptions o = options();
    o.salt = salt;
    DiskTier tier(o);
    const Stored stored = make_record(make_key(1), {10});
    const mode_t before = umask(0);
    ASSERT_EQ(put(tier, stored), PutOutcome::kStored);
    umask(before);
    const fs::path path = tier.path_of(stored.record.key);
    const bool believed = !o.salt.empty();
    const auto check = [&] {
      EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), believed ? "hit" : "foreign");
      EXPECT_EQ(tier.exists({{stored.record.key}}, kNoDeadline)[0], believed);
      EXPECT_EQ(tier.list()[0].problem.has_value(), !believed);
      EXPECT_TRUE(fs::exists(path));
      EXPECT_EQ(put(tier, stored), believed ? PutOutcome::kPresent : PutOutcome::kStored);
    };
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "hit");
    for (const mode_t mode : {0620, 0602, 0666}) {
      chmod(path.c_str(), mode);
      check();
    }
    chmod(path.c_str(), 0644);
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "hit");
    if (geteuid() == 0) {
      ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
      check();
    }
    const bool told = tier.stats().last_problem.find("foreign: " + path.string()) != std::string::npos;
    EXPECT_EQ(told, !believed);
    EXPECT_EQ(tier.stats().n_removed, 0);
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "hit");
  }
}

TEST_F(DiskTierTest, CollidingIds) {
  for (const int bits : {0, 4}) {
    DiskTierOptions o = options();
    o.dir = root_ / std::to_string(bits);
    o.id_bits = bits;
    DiskTier tier(o);
    for (int i = 0; i < 100; ++i) {
      const Stored stored = make_record(make_key(i), {10, 100});
      const ReadAll before = read_all(tier, stored.record.key);
      ASSERT_TRUE(reason(before.miss) == "absent" || reason(before.miss) == "other key") << reason(before.miss);
      ASSERT_EQ(put(tier, stored), PutOutcome::kStored);
      ASSERT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
    }
    EXPECT_GE(count(tier.stats(), MissReason::kOtherKey), 100 - (1 << bits));
  }
}

TEST_F(DiskTierTest, ListsRecordsAndDamage) {
  DiskTierOptions o = options();
  o.salt = "mine";
  DiskTier tier(o);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(put(tier, make_record(make_key(i), {100})), PutOutcome::kStored);
  write_file(tier.path_of(make_key(1)), random_bytes(200, 1));
  o.salt = "theirs";
  ASSERT_EQ(put(*std::make_unique<DiskTier>(o), make_record(make_key(9), {100})), PutOutcome::kStored);
  write_file(root_ / "cache" / "README", random_bytes(3, 1));  // a file of another program is no record
  write_file(root_ / "cache" / "ab" / "notes.vlr", random_bytes(3, 1));
  std::map<std::string, int> found;
  for (const ListedRecord& listed : tier.list()) {
    ++found[reason(listed.problem)];
    if (listed.problem) continue;
    EXPECT_EQ(listed.id, tier.id_of(listed.key));
    EXPECT_TRUE(listed.key == make_key(0) || listed.key == make_key(2));
    EXPECT_EQ(listed.bytes, static_cast<int64_t>(fs::file_size(tier.path_of(listed.key))));
    EXPECT_LT(std::abs(listed.used_ms - listed.created_ms), 60'000);
  }
  EXPECT_EQ(found, (std::map<std::string, int>{{"hit", 2}, {"malformed", 1}, {"other tenant", 1}}));
  for (const ListedRecord& listed : tier.list()) EXPECT_TRUE(tier.erase(listed.id));
  EXPECT_EQ(files_in(root_), (std::vector<std::string>{"README", "notes.vlr"}));
}

// --- order of eviction

constexpr int64_t kSection = 10'000;

class Eviction : public StoreTest {
 protected:
  void open(int64_t n_records, int64_t ttl_ms = 0) {
    DiskTierOptions o = options(n_records * (kSection + 300));
    o.ttl_ms = ttl_ms;
    tier_ = std::make_unique<DiskTier>(o);
  }
  Stored record(int n, uint8_t model = 1) const { return make_record(make_key(n, model), {kSection}); }
  void store(int n, uint8_t model = 1) { EXPECT_EQ(put(*tier_, record(n, model)), PutOutcome::kStored); }
  bool there(int n, uint8_t model = 1) const { return tier_->exists({{make_key(n, model)}}, kNoDeadline)[0]; }
  int n_there(int n, uint8_t model = 1) const {
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += there(i, model);
    return sum;
  }

  std::unique_ptr<DiskTier> tier_;
};

TEST_F(Eviction, EvictsLeastRecentlyUsedDownToNineTenths) {
  open(20);
  for (int i = 0; i < 20; ++i) store(i);
  EXPECT_EQ(n_there(20), 20);
  EXPECT_FALSE(read_all(*tier_, make_key(0)).miss);             // reading counts as use,
  EXPECT_EQ(put(*tier_, record(2)), PutOutcome::kPresent);      // storing again too,
  EXPECT_TRUE(tier_->exists({{make_key(1)}}, kNoDeadline)[0]);  // exists() does not
  store(20);
  // 18 fit into nine tenths of 20: three were evicted.
  EXPECT_EQ(n_there(21), 18);
  for (const int gone : {1, 3, 4}) EXPECT_FALSE(there(gone)) << gone;
  EXPECT_EQ(tier_->stats().n_evictions, 3);
  EXPECT_EQ(std::ssize(files_in(root_)), 18);
  store(21);
  store(22);
  EXPECT_EQ(tier_->stats().n_evictions, 3);
  store(23);
  EXPECT_EQ(tier_->stats().n_evictions, 6);
  for (const int gone : {5, 6, 7}) EXPECT_FALSE(there(gone)) << gone;
}

TEST_F(Eviction, RecordsOfOtherModelsAreEvictedBeforeOlderOnes) {
  open(20);
  for (int i = 0; i < 10; ++i) store(i, 1);
  for (int i = 0; i < 5; ++i) store(i, 2);
  for (int i = 0; i < 5; ++i) store(i, 3);
  tier_->set_model(make_key(0, 1).model);
  tier_->set_model(make_key(0, 3).model);
  for (int i = 10; i < 13; ++i) store(i, 1);  // the first of them evicts three
  EXPECT_EQ(n_there(5, 2), 2);
  EXPECT_TRUE(there(3, 2) && there(4, 2));
  EXPECT_EQ(n_there(13, 1), 13);
  EXPECT_EQ(n_there(5, 3), 5);
  store(13, 1);
  EXPECT_EQ(n_there(5, 2), 0);
  EXPECT_FALSE(there(0, 1));  // then the oldest, of any model
  EXPECT_TRUE(there(1, 1));
  EXPECT_EQ(n_there(5, 3), 5);
}

TEST_F(Eviction, InvalidRecordsAreEvictedFirst) {
  open(20);
  for (int i = 0; i < 20; ++i) store(i);
  write_file(tier_->path_of(make_key(19)), random_bytes(kSection, 3));
  write_file(tier_->path_of(make_key(18)), random_bytes(kSection, 4));
  write_file(tier_->path_of(make_key(17)), random_bytes(kSection, 5));
  store(20);
  EXPECT_EQ(n_there(17), 17);
  EXPECT_FALSE(there(19) || there(18) || there(17));
}

TEST_F(Eviction, ForeignRecordsAreEvictedFirstWhateverTheySay) {
  open(20);
  for (int i = 0; i < 20; ++i) store(i);
  for (const int i : {17, 18, 19}) chmod(tier_->path_of(make_key(i)).c_str(), 0666);
  store(20);
  EXPECT_EQ(n_there(17), 17);
  EXPECT_FALSE(there(19) || there(18) || there(17));
}

TEST_F(Eviction, LimitHoldsForAnySizes) {
  const int64_t limit = 100'000;
  DiskTier tier(options(limit));
  int64_t largest = 0;
  for (int i = 0; i < 200; ++i) {
    const auto size = static_cast<size_t>(splitmix(static_cast<uint64_t>(i)) % 40'000);
    ASSERT_EQ(put(tier, make_record(make_key(i), {size})), PutOutcome::kStored);
    int64_t used = 0;
    for (const ListedRecord& listed : tier.list()) used += listed.bytes;
    EXPECT_EQ(tier.used_bytes(), used);
    largest = std::max(largest, used);
  }
  EXPECT_LE(largest, limit);
  EXPECT_GT(largest, limit * 8 / 10);  // and the limit is nearly reached
  EXPECT_GT(tier.stats().n_evictions, 50);
}

// After every way of removing or replacing a record.
TEST_F(Eviction, UsedBytesMatchTheListing) {
  open(20, 10'000);
  const auto listed_bytes = [&] {
    int64_t sum = 0;
    for (const ListedRecord& listed : tier_->list()) sum += listed.bytes;
    return sum;
  };
  Stored old = record(1);
  old.record.created_ms = now_ms() - 11'000;
  for (int i = 2; i < 5; ++i) store(i);
  ASSERT_EQ(put(*tier_, old), PutOutcome::kStored);
  ASSERT_EQ(put(*tier_, record(1)), PutOutcome::kStored);  // replaces it
  EXPECT_EQ(tier_->used_bytes(), listed_bytes());
  Bytes flipped = read_file(tier_->path_of(make_key(2)));
  flipped.back() ^= std::byte{1};
  write_file(tier_->path_of(make_key(2)), flipped);
  EXPECT_EQ(reason(read_all(*tier_, make_key(2)).miss), "checksum");
  EXPECT_EQ(tier_->used_bytes(), listed_bytes());
  EXPECT_TRUE(tier_->erase(tier_->id_of(make_key(3))));
  EXPECT_EQ(tier_->used_bytes(), listed_bytes());
  EXPECT_EQ(tier_->list().size(), 2u);
}

TEST_F(Eviction, ARecordThatYieldsEvictsNothingThatSavesMore) {
  open(20);
  const auto stored = [&](int n, double saves_ms, int32_t n_uses = 0, bool yields = false) {
    Stored made = record(n);
    made.record.saves_ms = saves_ms;
    made.record.n_uses = n_uses;
    made.record.yields = yields;
    return put(*tier_, made);
  };
  // One that is full would evict the three oldest.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(stored(i, i == 2 ? 30 : 10), PutOutcome::kStored);
  EXPECT_EQ(stored(20, 20, 0, /*yields=*/true), PutOutcome::kOutranked);
  EXPECT_EQ(n_there(20), 20);
  EXPECT_EQ(tier_->stats().last_problem, "");
  EXPECT_EQ(stored(20, 40, 0, /*yields=*/true), PutOutcome::kStored);
  EXPECT_EQ(n_there(3), 0);
  // Uses count: 3 has been used five times.
  open(20);
  for (int use = 0; use < 4; ++use) EXPECT_FALSE(read_all(*tier_, make_key(3)).miss);
  for (int i = 4; i < 21; ++i) EXPECT_FALSE(read_all(*tier_, make_key(i)).miss);  // so that it is the oldest
  for (int i = 21; i < 23; ++i) EXPECT_EQ(stored(i, 10), PutOutcome::kStored);
  EXPECT_EQ(stored(23, 40, 0, /*yields=*/true), PutOutcome::kOutranked);
  EXPECT_EQ(stored(23, 80, 0, /*yields=*/true), PutOutcome::kOutranked);  // it was used again
  EXPECT_EQ(stored(23, 10), PutOutcome::kStored);
  EXPECT_FALSE(there(3));
}

// What a restarted server finds: records of first uses make room for each other, never for another's place.
TEST_F(Eviction, RecordsOfFirstUsesAreEvictedFirst) {
  open(20);
  const auto stored = [&](int n, bool first_use) {
    Stored made = record(n);
    made.record.saves_ms = first_use ? 1e6 : 1;
    made.record.yields = made.record.first_use = first_use;
    return put(*tier_, made);
  };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(stored(i, true), PutOutcome::kStored);
  for (int i = 6; i < 20; ++i) EXPECT_EQ(stored(i, false), PutOutcome::kStored);
  EXPECT_FALSE(read_all(*tier_, make_key(1)).miss);  // used again by this process,
  tier_->used(make_key(2));                          // and in the memory of another
  EXPECT_EQ(stored(20, false), PutOutcome::kStored);
  EXPECT_EQ(n_there(6), 3);
  EXPECT_TRUE(there(1) && there(2) && there(5));
  for (int i = 21; i < 40; ++i) EXPECT_EQ(stored(i, true), PutOutcome::kStored) << i;
  for (const int i : {1, 2, 6, 19, 20, 39}) EXPECT_TRUE(there(i)) << i;
  EXPECT_FALSE(there(5) || there(21));
  // All others were used again: there is no room.
  for (int i = 40; n_there(i) < 20; ++i) stored(i, true);
  for (int i = 0; i < 60; ++i) tier_->used(make_key(i));
  EXPECT_EQ(stored(60, true), PutOutcome::kOutranked);
  EXPECT_EQ(n_there(61), 20);
  EXPECT_EQ(tier_->stats().last_problem, "");
}

TEST_F(Eviction, RecordsOfUnknownSavingOutrankWhatYields) {
  open(20);
  for (int i = 0; i < 20; ++i) store(i);
  Stored made = record(20);
  made.record.saves_ms = 1e9;
  made.record.yields = true;
  EXPECT_EQ(put(*tier_, made), PutOutcome::kOutranked);
}

TEST_F(DiskTierTest, OneProcessClaimsARecord) {
  using std::chrono::minutes;
  DiskTier a(options()), b(options());
  const RecordKey key = make_key(1);
  EXPECT_TRUE(a.claim(key, minutes(1), kNoDeadline));
  EXPECT_FALSE(b.claim(key, minutes(1), kNoDeadline));
  EXPECT_TRUE(a.claim(key, minutes(1), kNoDeadline));  // its own
  EXPECT_TRUE(b.claim(make_key(2), minutes(1), kNoDeadline));
  b.release(key);  // not its own
  EXPECT_FALSE(b.claim(key, minutes(1), kNoDeadline));
  a.release(key);
  EXPECT_TRUE(b.claim(key, minutes(1), kNoDeadline));
  EXPECT_TRUE(a.claim(key, Clock::duration(0), kNoDeadline));  // b's is too old
  EXPECT_FALSE(b.claim(key, minutes(1), kNoDeadline));
  EXPECT_EQ(a.list().size(), 0u);
  EXPECT_EQ(a.used_bytes(), 0);
  a.release(key);
  b.release(make_key(2));
  EXPECT_EQ(files_in(root_).size(), 0u);
}

// What a clock that is set back afterwards leaves.
void set_claims_ahead(const fs::path& root, std::chrono::minutes by) {
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() == ".claim") fs::last_write_time(entry.path(), fs::file_time_type::clock::now() + by);
  }
}

TEST_F(DiskTierTest, ClaimFromTheFutureIsOld) {
  using std::chrono::minutes;
  DiskTier a(options()), b(options());
  const RecordKey key = make_key(1);
  ASSERT_TRUE(a.claim(key, minutes(1), kNoDeadline));
  set_claims_ahead(root_, minutes(5));
  EXPECT_TRUE(b.claim(key, minutes(1), kNoDeadline));
  EXPECT_FALSE(a.claim(key, minutes(1), kNoDeadline));
}

TEST_F(DiskTierTest, ClaimsFromTheFutureAreRemoved) {
  {
    DiskTier tier(options());
    ASSERT_TRUE(tier.claim(make_key(1), std::chrono::minutes(1), kNoDeadline));
  }
  set_claims_ahead(root_, std::chrono::hours(1));
  const DiskTier tier(options());
  EXPECT_EQ(files_in(root_).size(), 0u);
}

TEST_F(DiskTierTest, SavingsAndUsesAreListed) {
  DiskTier tier(options());
  Stored stored = make_record(make_key(1), {5});
  for (const double ms : {0.0, 0.4, 3.0, 1234.0, 5e6}) {
    tier.erase(tier.id_of(stored.record.key));
    stored.record.saves_ms = ms;
    ASSERT_EQ(put(tier, stored), PutOutcome::kStored);
    EXPECT_NEAR(tier.list().at(0).saves_ms, ms, 0.04 * (1 + ms)) << ms;
  }
  EXPECT_EQ(tier.list().at(0).n_uses, 0);
  read_all(tier, stored.record.key);
  read_all(tier, stored.record.key);
  EXPECT_EQ(tier.list().at(0).n_uses, 2);
}

TEST_F(Eviction, RecordLargerThanTheLimitIsRejectedWithoutEviction) {
  open(3);
  for (int i = 0; i < 3; ++i) store(i);
  const Stored large = make_record(make_key(9), {4 * kSection});
  const PutResult result = tier_->put(large.record, kNoDeadline);
  EXPECT_EQ(result.outcome, PutOutcome::kTooLarge);
  EXPECT_EQ(n_there(3), 3);
  EXPECT_EQ(count(tier_->stats(), PutOutcome::kTooLarge), 1);
  EXPECT_NE(tier_->stats().last_problem, "");
}

// Records of other processes are found at later scans, too, not only at the start.
TEST_F(Eviction, OtherProcessesCount) {
  open(32);
  DiskTier other(options(32 * (kSection + 300)));
  for (int i = 0; i < 30; ++i) EXPECT_EQ(put(other, record(i)), PutOutcome::kStored);
  for (int i = 100; i < 110; ++i) store(i);
  int64_t used = 0;
  for (const ListedRecord& listed : tier_->list()) used += listed.bytes;
  EXPECT_LE(used, 34 * (kSection + 300));  // a sixteenth above the limit
  EXPECT_GT(tier_->stats().n_evictions, 0);
  for (int i = 100; i < 110; ++i) EXPECT_TRUE(there(i)) << i;
}

TEST_F(Eviction, OldRecordsExpire) {
  open(20, 10'000);
  Stored old = record(1), fresh = record(2);
  old.record.created_ms = now_ms() - 11'000;
  fresh.record.created_ms = now_ms() - 1'000;
  ASSERT_EQ(put(*tier_, old), PutOutcome::kStored);
  ASSERT_EQ(put(*tier_, fresh), PutOutcome::kStored);
  EXPECT_EQ(reason(read_all(*tier_, old.record.key).miss), "expired");
  EXPECT_FALSE(there(1));
  EXPECT_EQ(read_all(*tier_, fresh.record.key).sections, fresh.sections);
  EXPECT_EQ(tier_->stats().n_failed(), 0);  // expiry is no failure
  EXPECT_EQ(tier_->stats().n_removed, 1);
  Stored future = record(4);
  future.record.created_ms = now_ms() + 11'000;
  ASSERT_EQ(put(*tier_, future), PutOutcome::kStored);
  EXPECT_EQ(reason(read_all(*tier_, future.record.key).miss), "expired");
  // An expired record does not keep a new one out.
  ASSERT_EQ(put(*tier_, old), PutOutcome::kStored);
  ASSERT_EQ(put(*tier_, record(1)), PutOutcome::kStored);
  EXPECT_FALSE(read_all(*tier_, old.record.key).miss);
  // The next start removes expired records that were never requested.
  ASSERT_EQ(put(*tier_, record(3)), PutOutcome::kStored);
  ASSERT_TRUE(tier_->erase(tier_->id_of(old.record.key)));
  ASSERT_EQ(put(*tier_, old), PutOutcome::kStored);
  open(20, 10'000);
  EXPECT_FALSE(there(1));
  EXPECT_TRUE(there(2) && there(3));
  // Without a limit of time no record expires.
  open(20);
  ASSERT_EQ(put(*tier_, old), PutOutcome::kStored);
  EXPECT_FALSE(read_all(*tier_, old.record.key).miss);
}

TEST_F(DiskTierTest, BadConfigurationIsAnError) {
  const auto message = [](const DiskTierOptions& o) -> std::string {
    try {
      const DiskTier tier(o);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.what();
    }
    return "";
  };
  DiskTierOptions o = options();
  EXPECT_EQ(message(o), "");
  o.dir = root_ / "a" / "b" / "";
  EXPECT_EQ(message(o), "");
  for (const char* made : {"a", "a/b"}) {
    EXPECT_EQ(fs::status(root_ / made).permissions(), fs::perms::owner_all) << made;
  }
  write_file(root_ / "file", random_bytes(1, 1));
  for (const fs::path& no : {root_ / "file", root_ / "file" / "b"}) {
    o.dir = no;
    EXPECT_EQ(message(o), no.string() +
                              ": the cache folder cannot be made: Not a directory; name a folder to which you "
                              "may write");
  }
  o = options();
  o.max_bytes = 0;
  EXPECT_NE(message(o), "");
  o.dir = "";
  EXPECT_NE(message(o), "");
}

TEST_F(DiskTierTest, PassedDeadlinesAreLate) {
  DiskTier tier(options());
  const Stored stored = make_record(make_key(1), {3'000'000});
  const Deadline past = Clock::now() - std::chrono::seconds(1);
  EXPECT_EQ(tier.put(stored.record, past).outcome, PutOutcome::kLate);
  EXPECT_EQ(files_in(root_), std::vector<std::string>());
  ASSERT_EQ(put(tier, stored), PutOutcome::kStored);
  EXPECT_EQ(reason(tier.open(stored.record.key, past).miss), "late");
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  Bytes to(3'000'000);
  EXPECT_EQ(reason(opened.reader->read(0, to, past)), "late");
  EXPECT_EQ(count(tier.stats(), MissReason::kLate), 2);
  EXPECT_FALSE(opened.reader->read(0, to, kNoDeadline));  // the record is as good as before
  EXPECT_EQ(to, stored.sections[0]);
}

}  // namespace
}  // namespace vlcache
