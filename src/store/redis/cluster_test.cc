// Records in a real Redis cluster: slots that move, masters that die. Skipped without a redis-server binary.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/redis/cluster_testing.h"
#include "store/redis/keys.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;

// A cluster takes two seconds to begin: tests that leave it healthy share one.
class RedisClusters : public StoreTest {
 protected:
  static void TearDownTestSuite() { shared_.reset(); }
  void SetUp() override {
    StoreTest::SetUp();
    if (!shared_) shared_ = std::make_unique<RedisCluster>(testing::TempDir(), RedisCluster::Fourth::kSpare);
    use(*shared_);
  }
  void use(RedisCluster& cluster) {
    cluster_ = &cluster;
    if (!cluster.running()) GTEST_SKIP() << "redis-server is not installed";
    for (int i = 0; i < cluster.n(); ++i) cluster.ask(i, {"FLUSHALL"});
  }

  RedisTierOptions clustered(std::initializer_list<int> seeds = {0}) {
    RedisTierOptions options;
    options.address.cluster = true;
    for (const int i : seeds) options.address.seeds.push_back(cluster_->node(i));
    options.times = {.connect_ms = 5000, .reply_ms = 5000, .retry_ms = 10, .max_retry_ms = 40};
    return options;
  }
  // Stores n records of about a hundred KB each.
  std::vector<Stored> store(RedisTier& tier, int n) {
    std::vector<Stored> stored;
    for (int i = 0; i < n; ++i) {
      stored.push_back(make_record(make_key(i), {100'000, static_cast<size_t>(i)}));
      const PutResult put = tier.put(stored.back().record, kNoDeadline);
      EXPECT_EQ(put.outcome, PutOutcome::kStored) << put.detail;
    }
    return stored;
  }
  static int slot_of(const RedisTier& tier, const Stored& stored) {
    return redis_slot(header_name(tier.id_of(stored.record.key)));
  }

  static inline std::unique_ptr<RedisCluster> shared_;
  RedisCluster* cluster_ = nullptr;
};

TEST_F(RedisClusters, RecordsLieOnAllMasters) {
  RedisTierOptions options = clustered({1, 2});
  options.address.seeds.insert(options.address.seeds.begin(), {"127.0.0.1", free_port()});  // no server there
  RedisTier tier(options);
  const std::vector<Stored> stored = store(tier, 24);
  std::vector<RecordKey> keys;
  std::set<int> masters;
  for (const Stored& s : stored) {
    keys.push_back(s.record.key);
    masters.insert(cluster_->master_of(slot_of(tier, s)));
    EXPECT_EQ(tier.put(s.record, kNoDeadline).outcome, PutOutcome::kPresent);
    EXPECT_EQ(read_all(tier, s.record.key).sections, s.sections);
  }
  EXPECT_GT(masters.size(), 1u);
  for (const int i : masters) EXPECT_GT(cluster_->ask(i, {"DBSIZE"}).integer, 0);
  keys.push_back(make_key(-1));
  std::vector<bool> expected(24, true);
  expected.push_back(false);
  EXPECT_EQ(tier.exists(keys, kNoDeadline), expected);

  const Stored large = make_record(make_key(100), {5'000'000, 0, 300});
  ASSERT_TRUE(tier.put(large.record, kNoDeadline).there());
  EXPECT_EQ(read_all(tier, large.record.key).sections, large.sections);

  const std::vector<ListedRecord> listed = tier.list();
  EXPECT_EQ(listed.size(), 25u);
  for (const ListedRecord& record : listed) {
    EXPECT_FALSE(record.problem);
    EXPECT_FALSE(verify_record(tier, record.key));
    EXPECT_TRUE(tier.erase(record.id));
  }
  for (const int i : masters) EXPECT_EQ(cluster_->ask(i, {"DBSIZE"}).integer, 0);
  EXPECT_EQ(tier.stats().n_failed(), 0) << tier.stats().last_problem;
}

TEST_F(RedisClusters, OfOneServerIsNamedInTheReason) {
  RedisTierOptions options = clustered();
  options.address.cluster = false;
  RedisTier tier(options);
  for (int i = 0; i < 20; ++i) tier.put(make_record(make_key(i), {10}).record, kNoDeadline);
  EXPECT_NE(tier.stats().last_problem.find("redis+cluster://"), std::string::npos) << tier.stats().last_problem;
  RedisServer single(root_);
  RedisTierOptions other = clustered();
  other.address.seeds = {{"127.0.0.1", single.port()}};
  RedisTier none(other);
  EXPECT_EQ(reason(read_all(none, make_key(1)).miss), "io error");
  EXPECT_NE(none.stats().last_problem.find("cluster support disabled"), std::string::npos) << none.stats().last_problem;
}

// At every step of the move: half of the record on one node, half on the other.
TEST_F(RedisClusters, SlotMovesToANewNode) {
  RedisTier tier(clustered());
  const Stored stored = make_record(make_key(1), {5'000'000, 5'000'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  const int slot = slot_of(tier, stored), from = cluster_->master_of(slot), to = 3;
  int n_steps = 0;
  RedisTier fresh(clustered());
  cluster_->move(slot, from, to, [&] {
    ++n_steps;
    for (RedisTier* t : {&tier, &fresh}) {
      EXPECT_EQ(t->exists({{stored.record.key}}, kNoDeadline), std::vector<bool>{true});
      const ReadAll read = read_all(*t, stored.record.key);
      EXPECT_EQ(reason(read.miss), "hit") << n_steps << " " << describe(read.miss.value_or(Miss{}));
      EXPECT_EQ(read.sections, stored.sections);
      EXPECT_EQ(t->put(stored.record, kNoDeadline).outcome, PutOutcome::kPresent);
    }
    if (n_steps == 3) {  // removed and written while both nodes have a part
      EXPECT_TRUE(tier.erase(tier.id_of(stored.record.key)));
      EXPECT_EQ(reason(read_all(fresh, stored.record.key).miss), "absent");
      const PutResult put = tier.put(stored.record, kNoDeadline);
      EXPECT_EQ(put.outcome, PutOutcome::kStored) << put.detail;
    }
  });
  EXPECT_GE(n_steps, 4);
  EXPECT_GT(cluster_->ask(to, {"DBSIZE"}).integer, 3);
  EXPECT_EQ(tier.list().size(), 1u);
  EXPECT_EQ(tier.stats().n_failed() + fresh.stats().n_failed(), 0) << tier.stats().last_problem;
}

TEST_F(RedisClusters, SlotsMoveUnderLoad) {
  RedisTier tier(clustered());
  const std::vector<Stored> stored = store(tier, 24);
  std::atomic<bool> moving = true;
  std::atomic<int> n_right = 0, n_wrong = 0;
  const auto look_up = [&](uint64_t seed) {
    for (uint64_t i = 0; moving; ++i) {
      const Stored& wanted = stored[splitmix(seed * 1000 + i) % stored.size()];
      const bool right = tier.exists({{wanted.record.key}}, kNoDeadline)[0] &&
                         read_all(tier, wanted.record.key).sections == wanted.sections;
      ++(right ? n_right : n_wrong);
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 2; ++seed) threads.emplace_back(look_up, seed);
  std::set<int> moved;
  for (const Stored& s : stored) {
    const int slot = slot_of(tier, s), from = cluster_->master_of(slot);
    if ((from == 0 || from == 2) && moved.insert(slot).second) cluster_->move(slot, from, 1);
  }
  EXPECT_GT(moved.size(), 10u);
  moving = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(n_right, 20);
  EXPECT_EQ(n_wrong, 0) << tier.stats().last_problem;
  EXPECT_EQ(tier.stats().n_failed(), 0) << tier.stats().last_problem;
}

// What the other masters hold is found all the time; a lookup of a dead one costs no time.
TEST_F(RedisClusters, MastersDie) {
  RedisCluster cluster(root_, RedisCluster::Fourth::kReplica);
  ASSERT_NO_FATAL_FAILURE(use(cluster));
  // Otherwise the whole cluster would end with one master.
  for (int i = 0; i < cluster.n(); ++i) cluster.ask(i, {"CONFIG", "SET", "cluster-require-full-coverage", "no"});
  RedisTierOptions options = clustered({0, 1, 2});
  options.times.retry_ms = 100;
  RedisTier tier(options);
  const std::vector<Stored> stored = store(tier, 24);
  const auto on = [&](int master) {
    return std::ranges::count_if(stored,
                                 [&](const Stored& s) { return cluster.master_of(slot_of(tier, s)) == master; });
  };
  const auto n_hits = [&](int dead) {
    int64_t n = 0;
    for (const Stored& s : stored) {
      const bool alive = cluster.master_of(slot_of(tier, s)) != dead;
      const ReadAll read = read_all(tier, s.record.key);
      n += !read.miss;
      EXPECT_TRUE(!read.miss || (!alive && read.miss->reason == MissReason::kIo)) << describe(*read.miss);
      if (!read.miss) {
        EXPECT_EQ(read.sections, s.sections);
      }
    }
    return n;
  };
  cluster.ask(0, {"WAIT", "1", "5000"});
  cluster.server(0).end(SIGKILL);  // it has a replica
  EXPECT_EQ(n_hits(0), 24 - on(0));
  EXPECT_FALSE(tier.list().empty());
  EXPECT_NE(tier.stats().last_problem.find("refused"), std::string::npos) << tier.stats().last_problem;
  int64_t n = 0;
  for (int i = 0; i < 500 && n < 24; ++i) {
    usleep(20'000);
    n = n_hits(0);
  }
  EXPECT_EQ(n, 24) << tier.stats().last_problem;
  const Stored more = make_record(make_key(1000), {5'000});
  EXPECT_TRUE(tier.put(more.record, kNoDeadline).there());

  cluster.server(1).end(SIGKILL);  // it has none
  const auto start = Clock::now();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(n_hits(1), 24 - on(1));
  EXPECT_LT(ms_since(start), 4'000);
  cluster_ = nullptr;
}

}  // namespace
}  // namespace vlcache
