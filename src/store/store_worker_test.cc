// The I/O threads: order, overlap, giving up, limits, and the state when they end. Also run under TSan.
#include "store/store_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "store/fake_tier_testing.h"

namespace vlcache {
namespace {

using State = RecordLoad::State;
using namespace std::chrono_literals;

// Memory that a record is loaded into, like an engine's.
struct Place {
  explicit Place(const Stored& stored) {
    for (const Bytes& section : stored.sections) sections.emplace_back(section.size(), std::byte{0});
  }
  std::vector<Bytes> sections;
};
LoadRequest request(const Stored& stored, const std::shared_ptr<Place>& place) {
  LoadRequest request{stored.record.key, {}, place, kNoDeadline};
  for (size_t i = 0; i < place->sections.size(); ++i)
    request.targets.push_back({static_cast<int32_t>(i), place->sections[i]});
  return request;
}

constexpr int64_t kQueueBytes = 1 << 20;
const std::vector<size_t> kSectionSizes = {100, 0, 33, 5000};

TEST(StoreWorker, SavedRecordIsLoaded) {
  FakeTier tier;
  StoreWorker worker(tier, kQueueBytes);
  const Stored stored = make_record(make_key(1), kSectionSizes);
  ASSERT_TRUE(worker.save(stored.record));
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(worker.stats().queued_bytes, 0);
  auto place = std::make_shared<Place>(stored);
  const RecordLoad load = worker.load(request(stored, place));
  for (size_t i = 0; i < kSectionSizes.size(); ++i) {
    ASSERT_EQ(load.wait(i, kNoDeadline), State::kReady);
    EXPECT_EQ(place->sections[i], stored.sections[i]);
  }
  EXPECT_EQ(tier.expected, (std::vector<int32_t>{0, 1, 2, 3}));  // a tier with a high latency can request all at once
}

TEST(StoreWorker, SectionsBecomeReadyOneByOne) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "read 1.2") gate.pass();
  });
  const Stored stored = make_record(make_key(1), kSectionSizes);
  tier.put(stored.record, kNoDeadline);
  StoreWorker worker(tier, kQueueBytes);
  auto place = std::make_shared<Place>(stored);
  const RecordLoad load = worker.load(request(stored, place));
  EXPECT_EQ(load.wait(1, kNoDeadline), State::kReady);
  gate.await(1);
  EXPECT_EQ(load.state(0), State::kReady);
  EXPECT_EQ(load.state(2), State::kPending);
  EXPECT_EQ(load.wait(2, Clock::now() + 5ms), State::kPending);
  EXPECT_EQ(place->sections[0], stored.sections[0]);
  gate.open();
  EXPECT_EQ(load.wait(3, kNoDeadline), State::kReady);
}

TEST(StoreWorker, SectionsAfterADamagedOneAreMissed) {
  FakeTier tier;
  tier.bad_section = 2;
  const Stored stored = make_record(make_key(1), kSectionSizes);
  tier.put(stored.record, kNoDeadline);
  StoreWorker worker(tier, kQueueBytes);
  auto place = std::make_shared<Place>(stored);
  const RecordLoad load = worker.load(request(stored, place));
  EXPECT_EQ(load.wait(3, kNoDeadline), State::kMissed);
  EXPECT_EQ(load.state(1), State::kReady);
  EXPECT_EQ(load.state(2), State::kMissed);
  EXPECT_EQ(describe(load.miss()), "checksum: fake");
  const RecordLoad absent = worker.load(request(make_record(make_key(2), {5}), place));
  EXPECT_EQ(absent.wait(0, kNoDeadline), State::kMissed);
  EXPECT_EQ(describe(absent.miss()), "absent: fake");
  EXPECT_EQ(worker.stats().n_given_up, 0);
}

// While one save is in progress, others and loads arrive: every load runs before every save, and loads take turns.
TEST(StoreWorker, LoadsAlternateAndDoNotWaitForSaves) {
  Gate loads, saves;
  FakeTier tier([&](const std::string& what) {
    if (what == "put 9") saves.pass();
    if (what == "open 1") loads.pass();
  });
  const Stored a = make_record(make_key(1), {1, 2, 3}), b = make_record(make_key(2), {1, 2});
  tier.put(a.record, kNoDeadline);
  tier.put(b.record, kNoDeadline);
  StoreWorker worker(tier, kQueueBytes);
  ASSERT_TRUE(worker.save(make_record(make_key(9), {1}).record));
  saves.await(1);
  auto place_a = std::make_shared<Place>(a), place_b = std::make_shared<Place>(b);
  const RecordLoad load_a = worker.load(request(a, place_a)), load_b = worker.load(request(b, place_b));
  loads.open();
  EXPECT_EQ(load_a.wait(2, kNoDeadline), State::kReady);
  EXPECT_EQ(load_b.wait(1, kNoDeadline), State::kReady);
  EXPECT_EQ(tier.done(), (std::vector<std::string>{"put 1", "put 2", "open 1", "read 1.0", "open 2", "read 2.0",
                                                   "read 1.1", "read 2.1", "read 1.2"}));
  saves.open();
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(tier.done().back(), "put 9");
}

// A caller that gives up may free its memory at once: the load holds it for as long as it is written to.
TEST(StoreWorker, AbandonedLoadHoldsItsMemory) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "read 1.1") gate.pass();
  });
  const Stored stored = make_record(make_key(1), {100, 100'000, 100});
  tier.put(stored.record, kNoDeadline);
  StoreWorker worker(tier, kQueueBytes);
  auto place = std::make_shared<Place>(stored);
  const std::weak_ptr<Place> watched = place;
  {
    const RecordLoad load = worker.load(request(stored, place));
    gate.await(1);
    place.reset();
  }
  EXPECT_FALSE(watched.expired());  // about to be written to
  gate.open();
  while (!watched.expired()) std::this_thread::sleep_for(1ms);  // a worker that kept it would hang the test
  EXPECT_EQ(tier.done().back(), "read 1.1");                    // the last section was left out
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(worker.stats().n_given_up, 1);
}

TEST(StoreWorker, ReadySectionsStayReadyAfterCancellation) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "read 1.1") gate.pass();
  });
  const Stored stored = make_record(make_key(1), {10, 10});
  tier.put(stored.record, kNoDeadline);
  StoreWorker worker(tier, kQueueBytes);
  RecordLoad load = worker.load(request(stored, std::make_shared<Place>(stored)));
  gate.await(1);
  load.give_up();
  EXPECT_EQ(load.state(0), State::kReady);
  EXPECT_EQ(load.state(1), State::kMissed);
  EXPECT_EQ(load.miss().reason, MissReason::kCancelled);
  gate.open();
  while (worker.stats().n_given_up == 0) std::this_thread::sleep_for(1ms);  // once the operation in progress is done
  EXPECT_EQ(load.state(1), State::kMissed);
  load = RecordLoad();  // of nothing, as after a move
}

// A finished load's handle keeps neither memory nor files.
TEST(StoreWorker, FinishedHandleHoldsNoMemory) {
  FakeTier tier;
  const Stored stored = make_record(make_key(1), {10});
  tier.put(stored.record, kNoDeadline);
  auto place = std::make_shared<Place>(stored);
  const std::weak_ptr<Place> watched = place;
  RecordLoad load;
  {
    StoreWorker worker(tier, kQueueBytes);
    load = worker.load(request(stored, place));
    EXPECT_EQ(load.wait(0, kNoDeadline), State::kReady);
  }
  place.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(load.state(0), State::kReady);
}

TEST(StoreWorker, QueueIsBounded) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "put 1") gate.pass();
  });
  StoreWorker worker(tier, 1000);
  EXPECT_FALSE(worker.save(make_record(make_key(7), {1001}).record));
  EXPECT_TRUE(worker.save(make_record(make_key(1), {600}).record));
  gate.await(1);
  EXPECT_FALSE(worker.save(make_record(make_key(2), {401}).record));  // the record being written counts
  EXPECT_TRUE(worker.save(make_record(make_key(3), {400}).record));
  EXPECT_FALSE(worker.save(make_record(make_key(4), {1}).record));
  EXPECT_EQ(worker.stats().queued_bytes, 1000);
  EXPECT_EQ(worker.stats().n_refused, 3);
  EXPECT_FALSE(worker.flush(Clock::now() + 5ms));
  gate.open();
  EXPECT_TRUE(worker.flush());
  EXPECT_TRUE(worker.save(make_record(make_key(5), {1000}).record));
  EXPECT_TRUE(worker.flush());
  std::vector<std::string> done = tier.done();
  std::ranges::sort(done);
  EXPECT_EQ(done, (std::vector<std::string>{"put 1", "put 3", "put 5"}));
}

// The saver gets the time that other threads leave, which may be none: flush() does its work.
TEST(StoreWorker, FlushSavesQueuedRecords) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "put 1") gate.pass();
  });
  StoreWorker worker(tier, kQueueBytes);
  ASSERT_TRUE(worker.save(make_record(make_key(1), {10}).record));
  gate.await(1);
  ASSERT_TRUE(worker.save(make_record(make_key(2), {10}).record));
  ASSERT_TRUE(worker.save(make_record(make_key(3), {10}).record));
  EXPECT_FALSE(worker.flush(Clock::now() + 50ms));
  EXPECT_EQ(tier.done(), (std::vector<std::string>{"put 2", "put 3"}));
  EXPECT_EQ(worker.stats().queued_bytes, 10);
  gate.open();
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(tier.done().back(), "put 1");
}

// The destructor waits for the operation in progress, and no longer.
TEST(StoreWorker, DestructorDropsQueuedRecords) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "put 1" || what == "open 4") gate.pass();
  });
  const Stored stored = make_record(make_key(3), {10});
  auto place = std::make_shared<Place>(stored);
  const std::weak_ptr<Place> watched = place;
  const Stored second = make_record(make_key(2), {10});
  const std::weak_ptr<const void> saved = second.record.owner;
  RecordLoad first, load;
  std::thread opener;
  {
    StoreWorker worker(tier, kQueueBytes);
    worker.save(make_record(make_key(1), {10}).record);
    const Stored absent = make_record(make_key(4), {10});
    first = worker.load(request(absent, std::make_shared<Place>(absent)));
    gate.await(2);
    worker.save(second.record);
    load = worker.load(request(stored, place));
    place.reset();
    opener = std::thread([&] {
      std::this_thread::sleep_for(10ms);  // until the destructor has begun; if it has not, the test proves less
      gate.open();
    });
  }
  opener.join();
  if (tier.done().size() == 2) {  // the operations that had begun
    EXPECT_EQ(load.state(0), State::kMissed);
    EXPECT_EQ(load.miss().reason, MissReason::kCancelled);
    EXPECT_TRUE(watched.expired());
  }
  EXPECT_EQ(saved.use_count(), 1);  // the test's own
}

TEST(StoreWorker, TierExceptionIsAMiss) {
  FakeTier tier([](const std::string& what) {
    if (what == "open 1" || what == "put 2") throw std::bad_alloc();
  });
  StoreWorker worker(tier, kQueueBytes);
  const Stored stored = make_record(make_key(1), {10});
  const RecordLoad load = worker.load(request(stored, std::make_shared<Place>(stored)));
  EXPECT_EQ(load.wait(0, kNoDeadline), State::kMissed);
  EXPECT_EQ(load.miss().reason, MissReason::kIo);
  EXPECT_TRUE(worker.save(make_record(make_key(2), {10}).record));
  EXPECT_TRUE(worker.save(make_record(make_key(3), {10}).record));
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(tier.done(), std::vector<std::string>{"put 3"});
  EXPECT_EQ(worker.stats().n_dropped, 1);
}

// Questions are answered before loads, are not asked when it is too late for an answer, and do not delay the end.
TEST(StoreWorker, QueriesAreAnsweredBeforeTheirDeadline) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "open 1") gate.pass();
  });
  const Stored stored = make_record(make_key(1), {10});
  tier.put(stored.record, kNoDeadline);
  RecordAnswer left;
  {
    StoreWorker worker(tier, kQueueBytes);
    const RecordLoad load = worker.load(request(stored, std::make_shared<Place>(stored)));
    gate.await(1);
    RecordAnswer known = worker.ask({make_key(2), make_key(1)}, kNoDeadline);
    RecordAnswer late = worker.ask({make_key(1)}, Clock::now());
    const RecordLoad later = worker.load(request(stored, std::make_shared<Place>(stored)));
    EXPECT_FALSE(known.wait(Deadline::min()));
    EXPECT_FALSE(known.wait(Clock::now() + 5ms));
    gate.open();
    EXPECT_TRUE(known.wait(kNoDeadline));
    EXPECT_FALSE(known.has(0));
    EXPECT_TRUE(known.has(1));
    EXPECT_TRUE(late.wait(kNoDeadline));
    EXPECT_FALSE(late.has(0));
    EXPECT_EQ(later.wait(0, kNoDeadline), State::kReady);
    EXPECT_EQ(tier.done(),
              (std::vector<std::string>{"put 1", "open 1", "read 1.0", "exists 2 1", "open 1", "read 1.0"}));
    left = worker.ask({make_key(1)}, kNoDeadline);
  }
  EXPECT_TRUE(left.wait(kNoDeadline));
  EXPECT_TRUE(RecordAnswer({true}).wait(Deadline::min()));
}

TEST(StoreWorker, ErasureRunsAfterEarlierSaves) {
  FakeTier tier;
  StoreWorker worker(tier, kQueueBytes);
  worker.save(make_record(make_key(1), {10}).record);
  worker.erase(make_key(1));
  worker.save(make_record(make_key(2), {10}).record);
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(tier.done(), (std::vector<std::string>{"put 1", "erase", "put 2"}));
  EXPECT_EQ(tier.exists({{make_key(1), make_key(2)}}, kNoDeadline), (std::vector<bool>{false, true}));
}

// flush() is a second saving thread: neither thread's saves overtake an erasure, nor does the erasure overtake a save
// in progress.
TEST(StoreWorker, ErasureWaitsForTheSaveInProgress) {
  Gate gate;
  FakeTier tier([&](const std::string& what) {
    if (what == "put 1") gate.pass();
  });
  StoreWorker worker(tier, kQueueBytes);
  worker.save(make_record(make_key(1), {10}).record);
  gate.await(1);
  worker.erase(make_key(1));
  worker.save(make_record(make_key(2), {10}).record);
  EXPECT_FALSE(worker.flush(Clock::now() + 20ms));
  EXPECT_EQ(tier.done(), std::vector<std::string>{});
  gate.open();
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(tier.done(), (std::vector<std::string>{"put 1", "erase", "put 2"}));
  EXPECT_EQ(tier.exists({{make_key(1), make_key(2)}}, kNoDeadline), (std::vector<bool>{false, true}));
}

TEST(StoreWorker, ReportsTheCreationTimeOfARecord) {
  FakeTier tier;
  Stored stored = make_record(make_key(1), {10});
  stored.record.created_ms = 1234;
  tier.put(stored.record, kNoDeadline);
  StoreWorker worker(tier, kQueueBytes);
  const RecordLoad load = worker.load(request(stored, std::make_shared<Place>(stored)));
  EXPECT_EQ(load.wait(0, kNoDeadline), State::kReady);
  EXPECT_EQ(load.created_ms(), 1234);
}

TEST(StoreWorker, EmptyLoadDoesNothing) {
  FakeTier tier;
  StoreWorker worker(tier, kQueueBytes);
  const RecordLoad load = worker.load({make_key(1), {}, nullptr, kNoDeadline});
  EXPECT_TRUE(worker.flush());
}

using StoreWorkerOnDisk = StoreTest;

// Several threads save, load, give up and ask at once; whatever is ready is right, whatever is corrupt is a miss.
TEST_F(StoreWorkerOnDisk, ConcurrentThreads) {
  DiskTier tier(options(400'000));  // a third of what they store: records are evicted
  for (int n = 0; n < 10; ++n) tier.put(make_record(make_key(n), {10'000, 1'000, 20'000}).record, kNoDeadline);
  StoreWorker worker(tier, 200'000);
  constexpr int kThreads = 3, kRounds = 60, kRecords = 40;
  std::atomic<int> n_ready{0}, n_wrong{0}, n_missed{0};
  const auto user = [&](int thread) {
    uint64_t random = static_cast<uint64_t>(thread) + 1;
    for (int round = 0; round < kRounds; ++round) {
      random += kSplitmixStep;
      const uint64_t bits = splitmix(random);
      const Stored stored = make_record(make_key(static_cast<int>(bits % kRecords)), {10'000, 1'000, 20'000});
      if (bits >> 40 & 1) {
        worker.save(stored.record);
        continue;
      }
      auto place = std::make_shared<Place>(stored);
      LoadRequest asked = request(stored, place);
      if ((bits >> 41 & 7) == 0) asked.deadline = Clock::now();
      const RecordLoad load = worker.load(std::move(asked));
      const size_t last = bits >> 44 & 1 ? 0 : 2;  // or leave early
      for (size_t i = 0; i <= last; ++i) {
        if (load.wait(i, kNoDeadline) != State::kReady) {
          ++n_missed;
          break;
        }
        ++n_ready;
        if (place->sections[i] != stored.sections[i]) ++n_wrong;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(user, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(worker.flush());
  EXPECT_EQ(n_wrong, 0);
  EXPECT_GT(n_ready, 0);
  EXPECT_GT(n_missed, 0);
  EXPECT_EQ(worker.stats().queued_bytes, 0);
  EXPECT_EQ(files_in(root_, ".tmp"), std::vector<std::string>());
  for (const ListedRecord& listed : tier.list()) EXPECT_FALSE(verify_record(tier, listed.key));
}

}  // namespace
}  // namespace vlcache
