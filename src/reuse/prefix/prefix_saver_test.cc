// When prefixes are stored, over a folder of small records: first uses while idle, their bound, and what they evict.
#include "reuse/prefix/prefix_saver.h"

#include <gtest/gtest.h>

#include "store/store_testing.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kPieceBytes = 2'000;

// A memory that holds what it is told, and a folder of one record a piece.
struct Places {
  DiskTier* disk;
  std::set<Element> memory;  // first elements of prompts
  bool calm = true, takes = true;
  PrefixTree::EvictionListener listener;
};

class FakePlaces final : public PrefixPlaces {
 public:
  explicit FakePlaces(Places& places) : places_(places) {}

  void on_evict(PrefixTree::EvictionListener listener) override { places_.listener = std::move(listener); }
  int32_t n_known(std::span<const Element> key) override {
    return places_.memory.contains(key[0]) ? static_cast<int32_t>(key.size()) : 0;
  }
  std::unique_ptr<PrefixKv> copy(std::span<const Element>) override { return std::make_unique<Kv>(places_); }
  std::unique_ptr<PrefixKv> pages(std::span<const PageGroup>) override { return std::make_unique<Kv>(places_); }
  bool is_near(const PrefixStore::Piece& piece) override {
    return places_.disk->exists({{piece.key}}, kNoDeadline).at(0);
  }
  int64_t bytes(const PrefixStore::Piece&) override { return kPieceBytes; }
  bool takes(const PrefixStore::Piece&) override { return places_.takes; }
  bool calm() override { return places_.calm; }
  void used(const PrefixStore::Piece& piece) override { places_.disk->used(piece.key); }
  bool flush(Deadline) override { return true; }

 private:
  class Kv final : public PrefixKv {
   public:
    explicit Kv(Places& places) : places_(places) {}
    int32_t end_at(int32_t n) override { return n; }
    bool holds(const PrefixStore::Piece&) override { return true; }
    int64_t save(const PrefixStore::Piece& piece, const PrefixStore::Worth& worth) override {
      const Bytes bytes(kPieceBytes);
      places_.disk->put({.key = piece.key,
                         .sections = {bytes},
                         .saves_ms = 100,
                         .n_uses = worth.n_uses,
                         .yields = worth.yields,
                         .first_use = worth.first_use},
                        kNoDeadline);
      return kPieceBytes;
    }

   private:
    Places& places_;
  };
  Places& places_;
};

class FirstUses : public StoreTest {
 protected:
  // A folder of this many pages.
  void open(int64_t n_pages, int64_t bytes_an_hour = int64_t{1} << 40, PrefixSaving when = PrefixSaving::kAuto) {
    tier_ = std::make_unique<DiskTier>(options(n_pages * std::min(n_pieces_, 2) * (kPieceBytes + 300)));
    places_ = {.disk = tier_.get(), .memory = {}, .calm = true, .takes = true, .listener = {}};
    first_uses_.emplace(bytes_an_hour);
    saver_ = std::make_unique<PrefixSaver>(std::make_unique<FakePlaces>(places_), when, *first_uses_);
  }
  // Pages of 128 tokens in two pieces, after which a question of 10 tokens follows.
  std::vector<PrefixStore::Piece> pieces_of(int page, bool image = true) const {
    std::vector<PrefixStore::Piece> pieces;
    for (int32_t i = 0; i < n_pieces_; ++i) {
      PrefixStore::Piece& piece = pieces.emplace_back();
      piece.begin = 64 * i;
      piece.end = i < 2 ? 64 * i + 64 : 138;
      piece.key = make_key(3 * page + i);
      piece.key.kind = RecordKind::kPrefix;
      if (image) piece.images = {Sha256Digest{1}};
      piece.images_end = image ? 128 : 0;
    }
    return pieces;
  }
  void ask(int page, PrefixSaver::Use use = {.ms_per_token = 1}, bool image = true) {
    const auto computed = [&] { return FakePlaces(places_).copy({}); };
    std::vector<Element> key(138, page);
    if (use.stays) places_.memory.insert(page);
    saver_->used(std::move(key), pieces_of(page, image), computed, use);
  }
  int idle(Clock::time_point now = Clock::now()) {
    int n = 0;
    while (saver_->save_first_use(now)) ++n;
    return n;
  }
  // Of the page's pieces.
  int n_stored(int page) {
    int n = 0;
    for (const PrefixStore::Piece& piece : pieces_of(page)) n += tier_->exists({{piece.key}}, kNoDeadline)[0];
    return n;
  }

  std::unique_ptr<DiskTier> tier_;
  int32_t n_pieces_ = 3;
  Places places_;
  std::optional<HourlyBytes> first_uses_;
  std::unique_ptr<PrefixSaver> saver_;
};

TEST_F(FirstUses, AreStoredUpToTheImageWhileIdle) {
  open(10);
  ask(1);
  EXPECT_EQ(n_stored(1), 0);
  places_.calm = false;
  EXPECT_TRUE(saver_->save_first_use());  // later
  EXPECT_EQ(n_stored(1), 0);
  places_.calm = true;
  EXPECT_TRUE(saver_->save_first_use());
  EXPECT_EQ(n_stored(1), 1);  // one at a time
  EXPECT_EQ(idle(), 1);
  EXPECT_EQ(n_stored(1), 2);  // the image and nine tenths of the prompt
  EXPECT_EQ(saver_->first_use_stats().queued, 2 * kPieceBytes);
  ask(1);
  EXPECT_EQ(n_stored(1), 3);  // and at the second use the rest
  EXPECT_EQ(idle(), 0);
}

TEST_F(FirstUses, AreNotStoredWithoutAnImageWithASaltOrWithABoundOfNone) {
  open(10);
  ask(1, {.ms_per_token = 1}, /*image=*/false);
  ask(2, {.ms_per_token = 1, .salted = true});
  EXPECT_EQ(idle(), 0);
  ask(3, {.ms_per_token = 1, .stays = false});  // memory will not hold it: stored at once
  EXPECT_EQ(n_stored(3), 3);
  EXPECT_EQ(idle(), 0);
  for (const PrefixSaving when : {PrefixSaving::kAuto, PrefixSaving::kAlways, PrefixSaving::kOff}) {
    open(10, when == PrefixSaving::kAuto ? 0 : 1 << 20, when);
    ask(4);
    EXPECT_EQ(idle(), 0);
  }
}

// A record is of no use without the records before it.
TEST_F(FirstUses, AreStoredWithTheBeginningThatOthersShare) {
  open(10);
  places_.takes = false;
  for (int use = 0; use < 3; ++use) ask(1);  // the queue is full at the second use
  idle();
  EXPECT_EQ(n_stored(1), 0);
  places_.takes = true;
  std::vector<PrefixStore::Piece> pieces = pieces_of(1);
  pieces[1] = pieces_of(2)[1];
  saver_->used(std::vector<Element>(138, 1), std::move(pieces), [&] { return FakePlaces(places_).copy({}); },
               {.ms_per_token = 1});
  idle();
  EXPECT_EQ(n_stored(1), 1);
  EXPECT_EQ(n_stored(2), 1);
}

TEST_F(FirstUses, KeepTheirBoundInEveryHour) {
  open(100, 3 * kPieceBytes);
  const auto start = Clock::now();
  ask(1), ask(2);
  EXPECT_EQ(idle(start), 3);
  EXPECT_EQ(n_stored(2), 1);
  EXPECT_EQ(saver_->first_use_stats(start).beyond_bound, kPieceBytes);
  EXPECT_EQ(saver_->first_use_stats(start).hour, 3 * kPieceBytes);
  ask(3);
  EXPECT_EQ(idle(start + 59min), 0);
  ask(4);
  EXPECT_EQ(idle(start + 62min), 2);
  ask(5);
  EXPECT_EQ(idle(start), 1);  // an earlier time adds no bytes
  ask(6);
  EXPECT_EQ(idle(start + 100min), 0);
  EXPECT_EQ(idle(start + 124min), 0);  // given up; stored at the second use
  ask(6);
  EXPECT_EQ(n_stored(6), 3);
  open(100, kPieceBytes - 1);
  ask(7);
  EXPECT_EQ(idle(), 0);
}

TEST_F(FirstUses, ThatMemoryEvictsOrThatAreTooManyAreGivenUp) {
  open(1000);
  ask(1);
  places_.memory.clear();
  EXPECT_EQ(idle(), 0);
  EXPECT_EQ(saver_->first_use_stats().evicted, 2 * kPieceBytes);
  for (int page = 2; page < 72; ++page) ask(page);
  EXPECT_EQ(saver_->first_use_stats().late, 6 * 2 * kPieceBytes);
  EXPECT_EQ(idle(), 64 * 2);
  EXPECT_EQ(n_stored(2) + n_stored(7), 0);
  EXPECT_EQ(n_stored(8), 2);
  ask(73);
  saver_->found(pieces_of(73)[0]);  // another server's
  EXPECT_EQ(idle(), 1);
}

// The simulation has it for 500 pages (replay_test).
TEST_F(FirstUses, OfManyPagesLeaveTheHitsOfFew) {
  n_pieces_ = 1;
  open(10);
  for (int use = 0; use < 2; ++use) {
    for (int page = 0; page < 4; ++page) ask(page);
  }
  for (int page = 4; page < 64; ++page) {
    ask(page);
    idle();
  }
  int n = 0;
  for (int page = 0; page < 4; ++page) n += n_stored(page);
  EXPECT_EQ(n, 4);
  EXPECT_EQ(n_stored(63), 1);
  EXPECT_EQ(n_stored(4), 0);
}

TEST_F(FirstUses, LargerThanTheFolderAreNotStored) {
  tier_ = std::make_unique<DiskTier>(options(kPieceBytes));
  places_ = {.disk = tier_.get(), .memory = {}, .calm = true, .takes = true, .listener = {}};
  first_uses_.emplace(1 << 20);
  saver_ = std::make_unique<PrefixSaver>(std::make_unique<FakePlaces>(places_), PrefixSaving::kAuto, *first_uses_);
  ask(1);
  idle();
  EXPECT_EQ(n_stored(1), 0);
}

}  // namespace
}  // namespace vlcache
