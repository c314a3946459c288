// Slow tiers: a request that waits for them waits alone, once, and what was found there is kept in nearer tiers.
#include "engine/reuse/stored_images_testing.h"
#include "store/redis/server_testing.h"

namespace vlcache {
namespace {

using Source = CacheReport::Image::Source;
using Encoder = CacheReport::Image::Encoder;

class SlowTiers : public StoredImages {
 protected:
  SlowTiers() {
    tier_->near = false;
    tier_->named = "far";
  }

  struct Stepped {
    GenerateResult result;
    int n_steps = 0;
  };
  Stepped stepped(Engine& e) const {
    Scheduler scheduler(e);
    const RequestId id = scheduler.add(request(e, "static:r=0.3"));
    int n_steps = 0;
    for (; !scheduler.done(id); ++n_steps) scheduler.step();
    return {scheduler.remove(id), n_steps};
  }
  // Without tiers.
  int n_steps_alone() {
    const auto tiers = std::exchange(tiers_, {});
    const std::unique_ptr<Engine> e = engine();
    tiers_ = tiers;
    return stepped(*e).n_steps;
  }
  // A step in which all requests wait lasts for kTierWait, 10 ms, or longer on a busy machine: a second patience would
  // need as many steps again.
  static void expect_one_patience(const Stepped& waited, double patience_ms, int n_steps_alone) {
    EXPECT_GE(waited.result.timings.ttft_ms, patience_ms);
    EXPECT_LT(waited.n_steps, 1.5 * patience_ms / 10 + n_steps_alone);
  }
  static bool ends(Scheduler& scheduler, RequestId id) {
    for (int i = 0; i < 10'000 && !scheduler.done(id); ++i) scheduler.step();
    return scheduler.done(id);
  }
  void expect_from(const GenerateResult& result, const char* tier) {
    EXPECT_EQ(ids(result), greedy());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.source, Source::kTier) << image.reason;
      EXPECT_EQ(image.tier, tier);
      EXPECT_EQ(image.encoder, Encoder::kHit);
    }
  }
};

TEST_F(SlowTiers, OtherRequestsDoNotWait) {
  store();
  for (const char* held : {"exists", "read kv", "read embeddings"}) {
    for (const char* chooser : {"static:r=0.3", "asked:r=0.1", "cacheblend:r=0.1"}) {
      SCOPED_TRACE(std::string(held) + " " + chooser);
      const std::unique_ptr<Engine> e = engine();
      tier_->n_searches = 0;
      tier_->hold(held);
      Scheduler scheduler(*e);
      const RequestId waits = scheduler.add(request(*e, chooser));
      // By itself, too, it waits outside of steps: other requests may arrive.
      for (int i = 0; i < 8; ++i) EXPECT_TRUE(scheduler.step());
      EXPECT_FALSE(scheduler.done(waits));
      const RequestId other = scheduler.add(without_image(*e));
      EXPECT_TRUE(ends(scheduler, other));
      EXPECT_FALSE(scheduler.done(waits));
      tier_->release();
      ASSERT_TRUE(ends(scheduler, waits));
      GenerateResult result = scheduler.remove(waits);
      if (std::string_view(chooser) == "asked:r=0.1") {  // may leave out an image
        for (CacheReport::Image& image : result.cache.images) image.encoder = Encoder::kHit;
      }
      expect_from(result, "far");
      EXPECT_EQ(scheduler.remove(other).tokens.size(), 12u);
      EXPECT_EQ(tier_->n_searches, 1);  // one for all images, KV and embeddings
      EXPECT_EQ(e->pools().used_bytes(), 0);
    }
  }
}

// Whatever is late: all of it together costs the request its patience, once.
TEST_F(SlowTiers, RequestWaitsForItsTimeoutOnce) {
  store();
  constexpr double kPatience = 600;
  const int alone = n_steps_alone();
  for (const char* held : {"exists", "read"}) {
    SCOPED_TRACE(held);
    const std::unique_ptr<Engine> e = engine(kPatience);
    tier_->hold(held);
    const Stepped waited = stepped(*e);
    tier_->release();
    EXPECT_EQ(ids(waited.result), greedy());
    expect_one_patience(waited, kPatience, alone);
    for (const CacheReport::Image& image : waited.result.cache.images) {
      EXPECT_EQ(image.source, Source::kComputed);
      EXPECT_EQ(image.encoder, Encoder::kComputed);
      const bool searched = held == std::string_view("read");
      EXPECT_EQ(image.reason, searched ? "far: late: not there in time" : "tier lookup timed out");
    }
  }
}

TEST_F(SlowTiers, ImagesInMemoryDoNotWaitForTiers) {
  const std::unique_ptr<Engine> e = engine();
  generate(*e, request(*e, "static:r=0.3"));
  tier_->hold("exists");
  for (const char* chooser : {"static:r=0.3", static_cast<const char*>(nullptr)}) {
    const GenerateResult result = generate(*e, request(*e, chooser));
    EXPECT_EQ(ids(result), greedy());
    for (const CacheReport::Image& image : result.cache.images) EXPECT_EQ(image.encoder, Encoder::kHit);
  }
  tier_->release();
}

// Cancelled or removed at any moment of waiting.
TEST_F(SlowTiers, WaitingRequestCanBeCancelled) {
  store();
  for (const char* held : {"exists", "read kv", "read embeddings"}) {
    SCOPED_TRACE(held);
    const std::unique_ptr<Engine> e = engine();
    tier_->hold(held);
    Scheduler scheduler(*e);
    const RequestId id = scheduler.add(request(*e, "static:r=0.3"));
    for (int i = 0; i < 4; ++i) scheduler.step();
    EXPECT_EQ(scheduler.remove(id).finish_reason, FinishReason::kCancelled);
    EXPECT_FALSE(scheduler.step());
    tier_->release();
    EXPECT_EQ(e->pools().used_bytes(), 0);
    expect_from(generate(*e, request(*e, "static:r=0.3")), "far");
  }
}

// ---- a slow server --------------------------------------------------------------------------------------------------

class SlowRedis : public SlowTiers {
 protected:
  void use(const RedisTimes& times) {
    RedisTierOptions options;
    options.address = local_address(server_.port());
    options.times = times;
    redis_ = std::make_shared<RedisTier>(options);
    tiers_ = {redis_};
  }
  void stand_still_at(const std::string& command) {
    standing_ = true;
    server_.set_hook([this, command](const FakeRedis::Words& words) -> std::optional<std::string> {
      while (standing_ && !server_.stopping() && words[0] == command)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return std::nullopt;
    });
  }

  FakeRedis server_;
  std::atomic<bool> standing_{false};
  std::shared_ptr<RedisTier> redis_;
};

TEST_F(SlowRedis, DoesNotDelayOtherRequests) {
  use({.connect_ms = 60'000, .reply_ms = 60'000});
  store();
  for (const char* command : {"EXISTS", "GET", "GETRANGE"}) {
    SCOPED_TRACE(command);
    const std::unique_ptr<Engine> e = engine();
    stand_still_at(command);
    Scheduler scheduler(*e);
    const RequestId waits = scheduler.add(request(*e, "static:r=0.3")), other = scheduler.add(without_image(*e));
    EXPECT_TRUE(ends(scheduler, other));
    EXPECT_FALSE(scheduler.done(waits));
    standing_ = false;
    ASSERT_TRUE(ends(scheduler, waits));
    expect_from(scheduler.remove(waits), "redis");
  }
  server_.set_hook(nullptr);
}

TEST_F(SlowRedis, DelaysTheRequestByItsTimeoutOnce) {
  use({.connect_ms = 60'000, .reply_ms = 60'000});
  store();
  constexpr double kPatience = 600;
  const int alone = n_steps_alone();
  for (const char* command : {"EXISTS", "GET", "GETRANGE"}) {
    SCOPED_TRACE(command);
    const std::unique_ptr<Engine> e = engine(kPatience);
    stand_still_at(command);
    const Stepped waited = stepped(*e);
    standing_ = false;
    EXPECT_EQ(ids(waited.result), greedy());
    expect_one_patience(waited, kPatience, alone);
  }
  server_.set_hook(nullptr);
}

// ---- records of slow tiers ------------------------------------------------------------------------------------------

class NearTier : public SlowTiers {
 protected:
  void add_disk(int64_t max_bytes) {
    near_ = std::make_shared<DiskTier>(
        DiskTierOptions{.dir = dir_ / "near", .max_bytes = max_bytes, .ttl_ms = 0, .salt = ""});
    tiers_ = {near_, tier_};
  }
  GenerateResult ask(Engine& e) const {
    GenerateResult result = generate(e, request(e, "static:r=0.3"));
    e.kv().tiers()->flush(kNoDeadline);
    return result;
  }
  static int64_t n_written(const KvTier& tier) { return tier.stats().n_put[static_cast<size_t>(PutOutcome::kStored)]; }

  std::shared_ptr<DiskTier> near_;
};

TEST_F(NearTier, RecordsAreCopiedOnce) {
  store();
  add_disk(64 << 20);
  const int64_t n_before = n_written(*disk_), n_records = std::ssize(disk_->list());
  expect_from(ask(*engine()), "far");
  EXPECT_EQ(n_written(*near_), n_records);
  EXPECT_GT(near_->stats().bytes_written, 0);
  for (const ListedRecord& record : disk_->list()) {
    EXPECT_EQ(read_all(*near_, record.key).sections, read_all(*disk_, record.key).sections);
    EXPECT_EQ(near_->open(record.key, kNoDeadline).reader->header().created_ms, record.created_ms);
  }
  expect_from(ask(*engine()), "disk");
  EXPECT_EQ(n_written(*near_), n_records);
  EXPECT_EQ(n_written(*disk_), n_before);  // nothing was written back
}

TEST_F(NearTier, RecordsAreCopiedFromTheAdmittedUseOn) {
  store();
  add_disk(64 << 20);
  const std::unique_ptr<Engine> e = engine(60'000, /*admit=*/2);
  expect_from(ask(*e), "far");
  EXPECT_EQ(n_written(*near_), 0);
  e->kv().forget_images();
  expect_from(ask(*e), "far");
  EXPECT_EQ(n_written(*near_), std::ssize(disk_->list()));
  e->kv().forget_images();
  expect_from(ask(*e), "disk");
}

TEST_F(NearTier, DiskLimitIsKept) {
  store();
  add_disk(1000);
  for (int i = 0; i < 2; ++i) expect_from(ask(*engine()), "far");
  EXPECT_EQ(std::ssize(near_->list()), 0);
  EXPECT_GT(near_->stats().n_put[static_cast<size_t>(PutOutcome::kTooLarge)], 0);
}

// Only records that were loaded whole are copied nearer: a damaged one is not, what was computed instead is.
TEST_F(NearTier, DamagedRecordsAreNotCopied) {
  store();
  add_disk(64 << 20);
  tier_->bad_sections = {1};
  for (const CacheReport::Image& image : ask(*engine()).cache.images) EXPECT_EQ(image.source, Source::kComputed);
  for (const ListedRecord& record : near_->list()) {
    EXPECT_EQ(read_all(*near_, record.key).sections, read_all(*disk_, record.key).sections);
  }
}

}  // namespace
}  // namespace vlcache
