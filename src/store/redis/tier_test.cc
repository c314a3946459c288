// Records in a real Redis server: round trips, damage, times to live, clients that share. Skipped without a
// redis-server binary.
#include "store/redis/tier.h"

#include <gtest/gtest.h>

#include <thread>

#include "store/redis/keys.h"
#include "store/redis/server_testing.h"

namespace vlcache {
namespace {

using Type = RedisReply::Type;
constexpr auto kPieceBytes = static_cast<size_t>(RedisTier::kPieceBytes);

class RedisRecords : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    server_.emplace(root_);
    if (!server_->running()) GTEST_SKIP() << "redis-server is not installed";
  }
  void TearDown() override {
    server_.reset();
    StoreTest::TearDown();
  }

  RedisTierOptions redis(const std::string& salt = "") const {
    RedisTierOptions options;
    options.address = local_address(server_->port());
    options.salt = salt;
    options.times = {.connect_ms = 5000, .reply_ms = 5000, .retry_ms = 10, .max_retry_ms = 40};
    return options;
  }
  std::string value(const std::string& name) const { return server_->ask({"GET", name}).text; }
  std::vector<std::string> names(const std::string& pattern = "*") const {
    std::vector<std::string> names;
    for (const RedisReply& name : server_->ask({"KEYS", pattern}).elements) names.push_back(name.text);
    std::ranges::sort(names);
    return names;
  }

  std::optional<RedisServer> server_;
};

int64_t n_missed(const KvTier& tier, MissReason why) { return tier.stats().n_missed[static_cast<size_t>(why)]; }

TEST_F(RedisRecords, StoredRecordIsReadBack) {
  RedisTier tier(redis());
  const std::vector<std::vector<size_t>> shapes = {
      {},
      {0},
      {1},
      {0, 0, 5, 0},
      {100, 200, 300},
      {kPieceBytes},
      {kPieceBytes - 1, 2, kPieceBytes},
      {0, 2 * kPieceBytes + 77, 0, 9'000'000, 3},
      std::vector<size_t>(300, 7'001),
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Stored stored = make_record(make_key(static_cast<int>(i)), shapes[i]);
    EXPECT_EQ(tier.exists({{stored.record.key}}, kNoDeadline), std::vector<bool>{false});
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "absent");
    const PutResult put = tier.put(stored.record, kNoDeadline);
    ASSERT_EQ(put.outcome, PutOutcome::kStored) << put.detail;
    EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kPresent);
    EXPECT_EQ(tier.exists({{stored.record.key, make_key(-1)}}, kNoDeadline), (std::vector<bool>{true, false}));
    RedisTier other(redis());
    const ReadAll read = read_all(other, stored.record.key);
    EXPECT_EQ(reason(read.miss), "hit") << (read.miss ? describe(*read.miss) : "");
    EXPECT_EQ(read.sections, stored.sections) << i;
    EXPECT_FALSE(verify_record(tier, stored.record.key));
  }
  const TierStats stats = tier.stats();
  EXPECT_EQ(stats.n_put[static_cast<size_t>(PutOutcome::kStored)], std::ssize(shapes));
  EXPECT_EQ(stats.n_put[static_cast<size_t>(PutOutcome::kPresent)], std::ssize(shapes));
  EXPECT_EQ(stats.n_failed(), 0);
  EXPECT_EQ(stats.last_problem, "");
  EXPECT_GT(stats.bytes_written, 9'000'000);
  for (const std::string& name : names()) {
    EXPECT_LE(value(name).size(), kPieceBytes) << name;
    EXPECT_EQ(server_->ask({"TTL", name}).integer, -1) << name;  // no value has a time to live
  }
}

TEST_F(RedisRecords, SectionsInAnyOrder) {
  RedisTier tier(redis());
  const Stored stored = make_record(make_key(1), {10, 3'000'000, 0, 20'000, 5'000'000, 7, 3'000'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const std::vector<std::vector<int32_t>> expected = {{}, {0, 1, 2, 3, 4, 5, 6}, {6, 4, 1}, {4, 4, 2, 9, -1, 3}, {3}};
  const std::vector<std::vector<int32_t>> read = {{6, 0, 3}, {0, 1, 2, 3, 4, 5, 6}, {6, 4, 1}, {4, 4, 2, 3}, {1, 3, 0}};
  for (size_t i = 0; i < read.size(); ++i) {
    const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
    ASSERT_TRUE(opened.reader);
    opened.reader->expect(expected[i]);
    for (const int32_t section : read[i]) {
      Bytes to(stored.sections[static_cast<size_t>(section)].size());
      EXPECT_EQ(reason(opened.reader->read(section, to, kNoDeadline)), "hit") << i << " " << section;
      EXPECT_EQ(to, stored.sections[static_cast<size_t>(section)]) << i << " " << section;
    }
  }
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  Bytes to(10);
  EXPECT_EQ(reason(opened.reader->read(7, to, kNoDeadline)), "other layout");
  EXPECT_EQ(reason(opened.reader->read(-1, to, kNoDeadline)), "other layout");
  EXPECT_EQ(reason(opened.reader->read(1, to, kNoDeadline)), "other layout");
  EXPECT_EQ(reason(opened.reader->read(0, to, kNoDeadline)), "hit");
}

TEST_F(RedisRecords, AnotherModelLayoutOrSaltIsAMiss) {
  RedisTier tier(redis()), alice(redis("alice")), bob(redis("bob"));
  const Stored stored = make_record(make_key(1), {1'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  RecordKey layout = stored.record.key, kind = stored.record.key;
  layout.layout = "f32 22x4x64";
  kind.kind = RecordKind::kPrefix;
  for (const RecordKey& key : {make_key(1, 2), make_key(2), layout, kind})
    EXPECT_EQ(reason(read_all(tier, key).miss), "absent");
  EXPECT_EQ(reason(read_all(alice, stored.record.key).miss), "absent");
  ASSERT_TRUE(alice.put(stored.record, kNoDeadline).there());
  EXPECT_EQ(reason(read_all(bob, stored.record.key).miss), "absent");
  EXPECT_EQ(read_all(alice, stored.record.key).sections, stored.sections);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);

  // Copied to the other's name, as anyone with write access to the server could do.
  const auto copy = [&](const RedisTier& from, const RedisTier& to) {
    for (const char* part : {"h", "0"}) {
      server_->ask({"COPY", value_name(from.id_of(stored.record.key), part),
                    value_name(to.id_of(stored.record.key), part), "REPLACE"});
    }
  };
  copy(tier, bob);
  EXPECT_EQ(reason(read_all(bob, stored.record.key).miss), "other tenant");
  copy(alice, bob);
  EXPECT_EQ(reason(read_all(bob, stored.record.key).miss), "other tenant");
  EXPECT_EQ(reason(read_all(bob, stored.record.key).miss), "absent");  // removed
  EXPECT_EQ(bob.stats().n_removed, 2);
}

TEST_F(RedisRecords, CollidingIds) {
  RedisTierOptions options = redis();
  options.id_bits = 0;
  RedisTier tier(options);
  const Stored one = make_record(make_key(1), {100}), two = make_record(make_key(2), {200});
  ASSERT_TRUE(tier.put(one.record, kNoDeadline).there());
  EXPECT_EQ(reason(read_all(tier, two.record.key).miss), "other key");
  EXPECT_EQ(tier.put(two.record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, two.record.key).sections, two.sections);
  EXPECT_EQ(reason(read_all(tier, one.record.key).miss), "other key");
}

// Each is a miss, never wrong bytes; and the record is removed, so that it can be stored again.
TEST_F(RedisRecords, BitFlips) {
  RedisTier tier(redis());
  const Stored stored = make_record(make_key(1), {40, 0, 300});
  const std::string header = header_name(tier.id_of(make_key(1))), piece = piece_name(tier.id_of(make_key(1)), 0);
  for (const std::string& name : {header, piece}) {
    ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
    const std::string right = value(name);
    for (size_t at = 0; at < right.size(); ++at) {
      ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
      const std::string now = value(name);  // a header holds its creation time
      const std::string flipped(1, static_cast<char>(now[at] ^ 1 << at % 8));
      server_->ask({"SETRANGE", name, std::to_string(at), flipped});
      const ReadAll read = read_all(tier, stored.record.key);
      ASSERT_TRUE(read.miss) << name << " " << at;
      ASSERT_TRUE(is_corrupt(read.miss->reason)) << describe(*read.miss);
      ASSERT_TRUE(names().empty()) << at;
    }
  }
}

TEST_F(RedisRecords, IncompleteRecordsAreMisses) {
  RedisTier tier(redis());
  const Stored stored = make_record(make_key(1), {100, 3'000'000});
  const std::string header = header_name(tier.id_of(make_key(1)));
  const auto piece = [&](int n) { return piece_name(tier.id_of(make_key(1)), n); };
  const auto found = [&](std::initializer_list<std::string_view> damage) {
    EXPECT_TRUE(tier.put(stored.record, kNoDeadline).there());
    EXPECT_EQ(names().size(), 3u);
    server_->ask(damage);
    const ReadAll read = read_all(tier, stored.record.key);
    EXPECT_EQ(names().size(), read.miss ? 0u : 3u);
    server_->ask({"FLUSHALL"});
    return reason(read.miss);
  };
  EXPECT_EQ(found({"DEL", piece(0)}), "absent");
  EXPECT_EQ(found({"DEL", piece(1)}), "absent");
  EXPECT_EQ(found({"SETRANGE", piece(1), "3000000", "x"}), "hit") << "bytes after the record are nobody's";
  EXPECT_EQ(found({"SET", piece(1), "short"}), "truncated");
  EXPECT_EQ(found({"SET", piece(0), ""}), "absent");
  EXPECT_EQ(found({"APPEND", header, "x"}), "malformed");
  EXPECT_EQ(found({"SET", header, ""}), "truncated");
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  EXPECT_EQ(found({"SET", header, value(header).substr(0, 100)}), "truncated");
  EXPECT_EQ(found({"SET", header, "something else that is as long as a header but is none of ours ......"}),
            "truncated");
  EXPECT_EQ(found({"SET", header, std::string(200, 'x')}), "malformed");

  // A writer that died before the header.
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  server_->ask({"DEL", header});
  EXPECT_EQ(tier.exists({{stored.record.key}}, kNoDeadline), std::vector<bool>{false});
  EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "absent");
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kStored);
  // A piece that was evicted does not keep the record from being stored.
  server_->ask({"DEL", piece(1)});
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
}

TEST_F(RedisRecords, KeysOfAnotherType) {
  RedisTier tier(redis());
  const Stored stored = make_record(make_key(1), {100});
  const std::string header = header_name(tier.id_of(make_key(1))), piece = piece_name(tier.id_of(make_key(1)), 0);
  for (const std::string& name : {header, piece}) {
    ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
    server_->ask({"DEL", name});
    server_->ask({"LPUSH", name, "x"});
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "malformed");
    EXPECT_TRUE(names().empty());
  }
  // SET replaces a value of any type.
  server_->ask({"LPUSH", header, "x"});
  server_->ask({"LPUSH", piece, "x"});
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
}

TEST_F(RedisRecords, OneProcessClaimsARecord) {
  using std::chrono::minutes;
  RedisTier a(redis()), b(redis());
  const RecordKey key = make_key(1);
  EXPECT_TRUE(a.claim(key, minutes(1), kNoDeadline));
  EXPECT_FALSE(b.claim(key, minutes(1), kNoDeadline));
  EXPECT_TRUE(a.claim(key, minutes(1), kNoDeadline));  // its own
  b.release(key);                                      // not its own
  EXPECT_FALSE(b.claim(key, minutes(1), kNoDeadline));
  EXPECT_TRUE(a.list().empty());
  a.release(key);
  EXPECT_TRUE(b.claim(key, std::chrono::milliseconds(1), kNoDeadline));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(a.claim(key, minutes(1), kNoDeadline));  // b's has expired
  server_.reset();
  EXPECT_TRUE(b.claim(key, minutes(1), Clock::now() + std::chrono::seconds(2)));  // no server to ask
}

TEST_F(RedisRecords, TimeToLive) {
  RedisTierOptions options = redis();
  options.ttl_ms = 1'000;
  RedisTier tier(options), patient(redis());
  const Stored stored = make_record(make_key(1), {100, 3'000'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
  for (const std::string& name : names()) EXPECT_GT(server_->ask({"PTTL", name}).integer, 0) << name;
  usleep(1'100'000);
  EXPECT_EQ(names("*:h").size(), 0u);
  EXPECT_EQ(reason(read_all(patient, stored.record.key).miss), "absent");
  // From a writer without this limit.
  ASSERT_TRUE(patient.put(stored.record, kNoDeadline).there());
  usleep(1'100'000);
  EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "expired");
  EXPECT_EQ(names().size(), 0u);
}

TEST_F(RedisRecords, ListAndErase) {
  RedisTier tier(redis()), alice(redis("alice"));
  EXPECT_TRUE(tier.list().empty());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(tier.put(make_record(make_key(i), {static_cast<size_t>(i) * 100}).record, kNoDeadline).there());
  }
  ASSERT_TRUE(alice.put(make_record(make_key(1), {10}).record, kNoDeadline).there());
  // Names that are no record's, the first one of format 1.
  const std::vector<std::string> others = {"vlcache:" + std::string(64, '0') + ":h",
                                           "vlcache:{" + std::string(64, 'F') + "}:h", "vlcache:{no id}:h"};
  for (const std::string& name : others) server_->ask({"SET", name, "x"});
  server_->ask({"SET", "vlcache:{" + std::string(64, 'f') + "}:h", "x"});
  const std::vector<ListedRecord> records = tier.list();
  ASSERT_EQ(records.size(), 42u);
  int n_right = 0;
  for (const ListedRecord& listed : records) {
    if (listed.problem) {
      EXPECT_TRUE(reason(listed.problem) == "other tenant" || reason(listed.problem) == "truncated");
    } else {
      ++n_right;
      EXPECT_EQ(listed.id, tier.id_of(listed.key));
      EXPECT_LT(now_ms() - listed.created_ms, 60'000);
      EXPECT_LT(now_ms() - listed.used_ms, 60'000);
      EXPECT_FALSE(verify_record(tier, listed.key));
    }
  }
  EXPECT_EQ(n_right, 40);
  for (const ListedRecord& listed : records) EXPECT_TRUE(tier.erase(listed.id));
  EXPECT_FALSE(tier.erase(records[0].id));
  EXPECT_EQ(names(), others);

  const Stored large = make_record(make_key(1), {70 * 200'000 * 11});  // more pieces than are removed at once
  ASSERT_TRUE(tier.put(large.record, kNoDeadline).there());
  EXPECT_GT(names().size(), 65u);
  EXPECT_TRUE(tier.erase(tier.id_of(large.record.key)));
  EXPECT_EQ(names("vlcache:*:?").size(), 3u);
}

TEST_F(RedisRecords, FullServer) {
  RedisTier tier(redis());
  const Stored small = make_record(make_key(1), {1'000}), large = make_record(make_key(2), {30'000'000});
  ASSERT_TRUE(tier.put(small.record, kNoDeadline).there());
  server_->ask({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
  server_->ask({"CONFIG", "SET", "maxmemory", "12mb"});
  const PutResult result = tier.put(large.record, kNoDeadline);
  EXPECT_EQ(result.outcome, PutOutcome::kNoSpace);
  EXPECT_NE(result.detail.find("OOM"), std::string::npos) << result.detail;
  EXPECT_EQ(names().size(), 2u) << "what was written of it stays after";
  EXPECT_EQ(read_all(tier, small.record.key).sections, small.sections);
  EXPECT_EQ(reason(read_all(tier, large.record.key).miss), "absent");

  // A server that evicts: a record of which pieces are left is a miss, and is stored again.
  server_->ask({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  const PutResult evicting = tier.put(large.record, kNoDeadline);
  EXPECT_EQ(evicting.outcome, PutOutcome::kNoSpace) << evicting.detail;
  for (int i = 10; i < 30; ++i) tier.put(make_record(make_key(i), {3'000'000}).record, kNoDeadline);
  int n_hits = 0;
  for (int i = 10; i < 30; ++i) {
    const ReadAll read = read_all(tier, make_key(i));
    EXPECT_TRUE(!read.miss || read.miss->reason == MissReason::kAbsent) << describe(*read.miss);
    n_hits += !read.miss;
  }
  EXPECT_GT(n_hits, 0);
  EXPECT_LT(n_hits, 4);
}

TEST_F(RedisRecords, FlushedInMidRead) {
  RedisTier tier(redis());
  const Stored stored = make_record(make_key(1), std::vector<size_t>(12, 3'000'000));
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  opened.reader->expect(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Bytes to(3'000'000);
  EXPECT_EQ(reason(opened.reader->read(0, to, kNoDeadline)), "hit");
  EXPECT_EQ(to, stored.sections[0]);
  server_->ask({"FLUSHALL"});
  std::optional<Miss> why;
  for (int32_t i = 1; i < 12 && !why; ++i) {
    why = opened.reader->read(i, to, kNoDeadline);
    if (!why) {
      EXPECT_EQ(to, stored.sections[static_cast<size_t>(i)]);
    }
  }
  EXPECT_EQ(reason(why), "absent");
  EXPECT_NE(why->detail.find("evicted or flushed"), std::string::npos);
  EXPECT_EQ(reason(opened.reader->read(11, to, kNoDeadline)), "absent");  // and stays absent
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kStored);
}

TEST_F(RedisRecords, KilledInMidReadAndStartedAgain) {
  RedisTier tier(redis());
  const Stored stored = make_record(make_key(1), std::vector<size_t>(12, 3'000'000));
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  Bytes to(3'000'000);
  EXPECT_EQ(reason(opened.reader->read(0, to, kNoDeadline)), "hit");
  server_->end(SIGKILL);
  EXPECT_EQ(reason(opened.reader->read(1, to, kNoDeadline)), "io error");
  EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "io error");
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kIo);
  EXPECT_EQ(tier.exists({{stored.record.key}}, kNoDeadline), std::vector<bool>{false});
  EXPECT_FALSE(tier.erase(tier.id_of(stored.record.key)));
  EXPECT_TRUE(tier.list().empty());
  EXPECT_EQ(n_missed(tier, MissReason::kIo), 4);
  EXPECT_NE(tier.stats().last_problem.find("refused"), std::string::npos) << tier.stats().last_problem;
  server_->start();
  ASSERT_TRUE(server_->running());
  PutResult put;
  for (int i = 0; i < 1000; ++i) {
    put = tier.put(stored.record, kNoDeadline);
    if (put.there()) break;
    usleep(10'000);
  }
  EXPECT_EQ(put.outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
}

TEST_F(RedisRecords, ServerRestartBetweenRequestsIsNoFailure) {
  RedisTier tier(redis());
  server_->end(SIGTERM);
  server_->start();
  EXPECT_EQ(tier.put(make_record(make_key(1), {100}).record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(tier.stats().last_problem, "");
}

TEST_F(RedisRecords, StoppedServer) {
  RedisTierOptions options = redis();
  options.times = {.connect_ms = 5000, .reply_ms = 1000, .retry_ms = 10, .max_retry_ms = 40};
  RedisTier tier(options);
  const Stored stored = make_record(make_key(1), {1'000, 2'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  Bytes to(1'000);
  server_->stop();
  auto start = Clock::now();
  // The caller's deadline: the server is not considered down.
  EXPECT_EQ(reason(opened.reader->read(0, to, start + std::chrono::milliseconds(30))), "late");
  EXPECT_LT(ms_since(start), 900);
  start = Clock::now();
  EXPECT_EQ(reason(opened.reader->read(1, to, kNoDeadline)), "other layout");
  server_->go_on();
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
  server_->stop();
  start = Clock::now();
  EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "late");  // the limit for the server
  EXPECT_GT(ms_since(start), 990);
  start = Clock::now();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(reason(read_all(tier, make_key(i)).miss), "io error");
  EXPECT_LT(ms_since(start), 900) << "a server that is down costs no time";
  server_->go_on();
}

TEST_F(RedisRecords, UsersPasswordsAndDatabases) {
  ASSERT_TRUE(server_->ask({"ACL", "SETUSER", "ann", "on", ">secret-ann", "~*", "+@all"}).is(Type::kStatus));
  server_->ask({"ACL", "SETUSER", "reader", "on", ">secret-reader", "~*", "+@read", "+ping"});
  server_->ask({"CONFIG", "SET", "requirepass", "secret-default"});
  const Stored stored = make_record(make_key(1), {100});
  const auto outcome = [&](const std::string& user, const std::string& password, int db, std::string& problem) {
    RedisTierOptions options = redis();
    options.address.user = user;
    options.address.password = password;
    options.address.db = db;
    RedisTier tier(options);
    const PutOutcome put = tier.put(stored.record, kNoDeadline).outcome;
    problem = tier.stats().last_problem;
    return put;
  };
  std::string problem;
  EXPECT_EQ(outcome("", "secret-default", 0, problem), PutOutcome::kStored);
  EXPECT_EQ(outcome("ann", "secret-ann", 0, problem), PutOutcome::kPresent);
  EXPECT_EQ(outcome("ann", "secret-ann", 3, problem), PutOutcome::kStored);  // another database
  EXPECT_EQ(outcome("ann", "secret-ann", 99, problem), PutOutcome::kIo);
  EXPECT_NE(problem.find("SELECT"), std::string::npos) << problem;
  EXPECT_EQ(outcome("", "", 0, problem), PutOutcome::kIo);
  EXPECT_NE(problem.find("NOAUTH"), std::string::npos) << problem;
  for (const char* user : {"", "ann", "nobody"}) {
    EXPECT_EQ(outcome(user, "secret-wrong", 0, problem), PutOutcome::kIo);
    EXPECT_NE(problem.find("wrong user or password"), std::string::npos) << problem;
    EXPECT_EQ(problem.find("secret"), std::string::npos) << problem;
  }
  EXPECT_EQ(outcome("reader", "secret-reader", 0, problem), PutOutcome::kPresent);  // it may read
  EXPECT_EQ(outcome("reader", "secret-reader", 4, problem), PutOutcome::kIo);
  EXPECT_NE(problem.find("NOPERM"), std::string::npos) << problem;
}

TEST_F(RedisRecords, UsersOfASocketWithoutPing) {
  server_.reset();
  const std::string socket = (root_ / "r").string();
  server_.emplace(root_, std::vector<std::string>{"--unixsocket", socket});
  server_->ask({"ACL", "SETUSER", "ann", "on", ">pw", "~vlcache:*", "+get", "+set", "+getrange", "+exists", "+unlink",
                "+pexpire", "+persist"});
  RedisTierOptions options = redis();
  options.address = parse_redis_url("unix://ann:pw@" + socket);
  RedisTier tier(options);
  tier.probe();
  EXPECT_EQ(tier.place(), "unix://" + socket);
  EXPECT_TRUE(tier.stats().works()) << tier.stats().last_problem;
  EXPECT_EQ(names(), std::vector<std::string>{});  // nothing of the probe is left
  const Stored stored = make_record(make_key(1), {100});
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
}

// What the tier cannot do is found before a record needs it, and ends when the server allows it again.
TEST_F(RedisRecords, Probes) {
  server_->ask({"ACL", "SETUSER", "few", "on", ">pw", "~vlcache:*", "+get", "+set"});
  server_->ask({"ACL", "SETUSER", "reader", "on", ">pw", "~vlcache:*", "+get"});
  server_->ask({"ACL", "SETUSER", "writer", "on", ">pw", "~vlcache:*", "+set"});
  const auto trouble = [&](const std::string& user, const std::string& password = "pw") {
    RedisTierOptions options = redis();
    options.address.user = user;
    options.address.password = password;
    RedisTier tier(options);
    tier.probe();
    const TierStats stats = tier.stats();
    EXPECT_EQ(stats.n_failed() + stats.n_failed_writes() > 0, !stats.works());
    return std::pair(stats.cannot_read, stats.cannot_write);
  };
  EXPECT_EQ(trouble("few"), std::pair(std::string(), std::string()));
  EXPECT_EQ(trouble("reader").first, "");
  EXPECT_NE(trouble("reader").second.find("(SET)"), std::string::npos);
  EXPECT_NE(trouble("writer").first.find("(GET)"), std::string::npos);
  EXPECT_EQ(trouble("writer").second, "");
  EXPECT_EQ(trouble("few", "no").first, "io error: wrong user or password");
  RedisTier tier(redis());
  const auto now = [&](std::initializer_list<std::string_view> words) {
    server_->ask(words);
    tier.probe();
    return tier.stats().cannot_write;
  };
  EXPECT_NE(now({"REPLICAOF", "127.0.0.1", "1"}).find("READONLY"), std::string::npos);
  EXPECT_EQ(tier.stats().cannot_read, "");
  EXPECT_EQ(now({"REPLICAOF", "NO", "ONE"}), "");
  EXPECT_NE(now({"CONFIG", "SET", "maxmemory", "1"}).find("no space: OOM"), std::string::npos);
  EXPECT_EQ(now({"CONFIG", "SET", "maxmemory", "0"}), "");
  server_->ask({"CONFIG", "SET", "requirepass", "secret"});
  RedisTier without(redis());
  without.probe();
  EXPECT_NE(without.stats().cannot_read.find("NOAUTH"), std::string::npos);
}

int64_t lives_ms(const RedisServer& server, const std::string& name) { return server.ask({"PTTL", name}).integer; }

// Records of first uses expire, unless they are used again, and use no memory that others need.
TEST_F(RedisRecords, FirstUses) {
  Stored stored = make_record(make_key(1), {1'000, kPieceBytes});
  stored.record.yields = stored.record.first_use = true;
  const std::string seal = value_name(RecordSeal().id(stored.record.key), "");
  const auto store = [&](RedisTierOptions options) {
    server_->ask({"FLUSHALL"});
    RedisTier tier(options);
    const PutOutcome outcome = tier.put(stored.record, kNoDeadline).outcome;
    EXPECT_TRUE(tier.stats().works());
    return outcome;
  };
  RedisTier tier(redis());
  ASSERT_EQ(store(redis()), PutOutcome::kStored);
  for (const char* part : {"h", "0", "1", "f"}) {
    EXPECT_GT(lives_ms(*server_, seal + part), 0) << part;
    EXPECT_LE(lives_ms(*server_, seal + part), 3'700'000) << part;
  }
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
  tier.used(stored.record.key);
  for (const char* part : {"h", "0", "1"}) EXPECT_EQ(lives_ms(*server_, seal + part), -1) << part;
  EXPECT_EQ(lives_ms(*server_, seal + "f"), -2);
  // Another server stores the same: that is a use. It then has the time that its first writer gave it.
  RedisTierOptions day = redis();
  day.ttl_ms = 86'400'000;
  ASSERT_EQ(store(day), PutOutcome::kStored);
  EXPECT_LE(lives_ms(*server_, seal + "h"), 3'600'000);
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kPresent);
  for (const char* part : {"h", "0", "1"}) EXPECT_GT(lives_ms(*server_, seal + part), 80'000'000) << part;
  // A record stored otherwise keeps its time.
  stored.record.yields = stored.record.first_use = false;
  ASSERT_EQ(store(day), PutOutcome::kStored);
  tier.used(stored.record.key);
  EXPECT_GT(lives_ms(*server_, seal + "h"), 80'000'000);
  stored.record.yields = stored.record.first_use = true;
  // No room, and a user that does not know whether there is.
  server_->ask({"CONFIG", "SET", "maxmemory", "3mb"});
  EXPECT_EQ(store(redis()), PutOutcome::kOutranked);
  server_->ask({"CONFIG", "SET", "maxmemory", "64mb"});
  EXPECT_EQ(store(redis()), PutOutcome::kStored);
  server_->ask({"ACL", "SETUSER", "few", "on", ">pw", "~vlcache:*", "+get", "+set", "+exists", "+unlink", "+pexpire"});
  RedisTierOptions few = redis();
  few.address.user = "few";
  few.address.password = "pw";
  EXPECT_EQ(store(few), PutOutcome::kOutranked);
}

// Two writers of the same records, whose bytes differ, and readers between them: right bytes of one of them, or a miss.
TEST_F(RedisRecords, ClientsShareAServer) {
  constexpr int kRecords = 6, kRounds = 60;
  std::atomic<int> n_wrong = 0, n_hits = 0;
  const auto client = [&](uint64_t seed) {
    RedisTier tier(redis());
    for (int i = 0; i < kRounds; ++i) {
      const uint64_t bits = splitmix(seed * 1000 + static_cast<uint64_t>(i));
      const RecordKey key = make_key(static_cast<int>(bits % kRecords));
      Stored ours = make_record(key, {100'000, 5});
      Bytes other(100'000, std::byte{static_cast<uint8_t>(key.content[0])});
      if (seed % 2 != 0) ours.record.sections[0] = other;
      if (bits >> 20 & 1) {
        tier.put(ours.record, kNoDeadline);
      } else if (bits >> 21 & 1) {
        tier.erase(tier.id_of(key));
      } else {
        const ReadAll read = read_all(tier, key);
        n_hits += !read.miss;
        const bool right = !read.miss && read.sections[1] == ours.sections[1] &&
                           (read.sections[0] == ours.sections[0] || read.sections[0] == other);
        n_wrong += !read.miss && !right;
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) threads.emplace_back(client, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_GT(n_hits, 0);
}

// One tier, several threads: connections are not shared.
TEST_F(RedisRecords, ThreadsShareATier) {
  RedisTier tier(redis());
  std::vector<Stored> stored;
  for (int i = 0; i < 8; ++i) {
    stored.push_back(make_record(make_key(i), {1'000, 400'000}));
    ASSERT_TRUE(tier.put(stored.back().record, kNoDeadline).there());
  }
  std::atomic<int> n_right = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 20; ++i) {
        const Stored& wanted = stored[(i + t) % stored.size()];
        n_right += tier.exists({{wanted.record.key}}, kNoDeadline)[0] &&
                   read_all(tier, wanted.record.key).sections == wanted.sections;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_right, 80);
  EXPECT_EQ(tier.stats().n_failed(), 0);
}

}  // namespace
}  // namespace vlcache
