// Several tiers: which are asked, which are waited for, which records are stored where.
#include "store/tier_chain.h"

#include <gtest/gtest.h>

#include "store/fake_tier_testing.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;
constexpr int64_t kQueue = 1 << 20;

Stored record(int n) { return make_record(make_key(n), {100, 50}); }

class TierChainTest : public testing::Test {
 protected:
  // A tier of this machine, and one that answers once `gate_` is open.
  TierChainTest()
      : near_(std::make_shared<FakeTier>(nullptr, "near", /*near=*/true)),
        far_(std::make_shared<FakeTier>([this](const std::string& what) {
          if (what.starts_with("exists")) gate_.pass();
        })) {
    near_->put(record(1).record, kNoDeadline);
    far_->put(record(1).record, kNoDeadline);
    far_->put(record(2).record, kNoDeadline);
    chain_ = std::make_unique<TierChain>(std::vector<std::shared_ptr<KvTier>>{near_, far_}, kQueue);
  }

  static std::string name(ChainedTier* tier) { return tier != nullptr ? std::string(tier->tier->name()) : "none"; }
  bool far_has(int n) { return !read_all(*far_, make_key(n)).miss; }
  bool near_has(int n) { return !read_all(*near_, make_key(n)).miss; }

  Gate gate_;
  std::shared_ptr<FakeTier> near_, far_;
  std::unique_ptr<TierChain> chain_;
};

TEST_F(TierChainTest, SearchDoesNotWaitForDistantTiers) {
  TierSearch search = chain_->search({make_key(1), make_key(2), make_key(3)}, kNoDeadline);
  EXPECT_TRUE(search.wait(0, Deadline::min()));  // the first tier has it
  EXPECT_EQ(name(search.tier(0)), "near");
  EXPECT_FALSE(search.wait(1, Deadline::min()));
  EXPECT_FALSE(search.wait(1, Clock::now() + 5ms));
  EXPECT_EQ(search.tier(1), nullptr);
  gate_.open();
  EXPECT_TRUE(search.wait(1, kNoDeadline));
  EXPECT_EQ(name(search.tier(1)), "fake");
  EXPECT_TRUE(search.wait(2, kNoDeadline));
  EXPECT_EQ(search.tier(2), nullptr);
  EXPECT_EQ(far_->done().back(), "exists 2 3");  // one question, for the records that are not on this machine
}

TEST_F(TierChainTest, FindWaitsForDistantTiers) {
  EXPECT_EQ(chain_->find(make_key(2), Clock::now() + 5ms), nullptr);
  gate_.open();
  EXPECT_EQ(name(chain_->find(make_key(2), kNoDeadline)), "fake");
  EXPECT_EQ(name(chain_->find(make_key(1), kNoDeadline)), "near");
  EXPECT_EQ(chain_->find(make_key(3), kNoDeadline), nullptr);
  EXPECT_TRUE(chain_->is_near(make_key(1)));
  EXPECT_FALSE(chain_->is_near(make_key(2)));
}

TEST_F(TierChainTest, DistantHitsAreCopiedNearer) {
  gate_.open();
  ChainedTier* const far = chain_->find(make_key(2), kNoDeadline);
  ASSERT_NE(far, nullptr);
  Stored found = record(2);
  found.record.created_ms = 77;
  chain_->bring_nearer(found.record, *far);
  ASSERT_TRUE(chain_->flush(kNoDeadline));
  EXPECT_TRUE(near_has(2));
  EXPECT_EQ(near_->open(make_key(2), kNoDeadline).reader->header().created_ms, 77);  // the record keeps its age
  chain_->bring_nearer(found.record, *chain_->find(make_key(2), kNoDeadline));       // already nearest: no effect
  ASSERT_TRUE(chain_->flush(kNoDeadline));
  int n_puts = 0;
  for (const FakeTier* tier : {near_.get(), far_.get()}) {
    for (const std::string& what : tier->done()) n_puts += what == "put 2" ? 1 : 0;
  }
  EXPECT_EQ(n_puts, 2);
}

TEST_F(TierChainTest, SavesAndErasesInEveryTier) {
  gate_.open();
  chain_->save(record(5).record);
  ASSERT_TRUE(chain_->flush(kNoDeadline));
  EXPECT_TRUE(near_has(5) && far_has(5));
  chain_->erase(make_key(5));
  ASSERT_TRUE(chain_->flush(kNoDeadline));
  EXPECT_FALSE(near_has(5) || far_has(5));
}

// A blocked tier fills its own share of the bound, not the others'.
TEST(TierChain, TiersShareTheBound) {
  Gate gate;
  const auto near = std::make_shared<FakeTier>(nullptr, "near", /*near=*/true);
  const auto far = std::make_shared<FakeTier>([&](const std::string& what) {
    if (what.starts_with("put")) gate.pass();
  });
  TierChain chain({near, far}, 1000);
  for (int n = 0; n < 5; ++n) {
    chain.save(record(n).record);
    while (chain.stats()[0].queue.queued_bytes > 0) std::this_thread::sleep_for(1ms);
    EXPECT_LE(chain.stats()[1].queue.queued_bytes, 500);
  }
  EXPECT_EQ(chain.stats()[0].queue.n_refused, 0);
  EXPECT_EQ(chain.stats()[1].queue.n_refused, 2);
  EXPECT_EQ(chain.stats()[1].queue.queued_bytes, 450);
  gate.open();
}

}  // namespace
}  // namespace vlcache
