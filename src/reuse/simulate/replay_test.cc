// Replays whose hits can be counted by hand.
#include "reuse/simulate/replay.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "reuse/simulate/replica.h"

namespace vlcache {
namespace {

Trace of(const std::vector<std::vector<Element>>& requests) {
  Trace trace;
  for (const auto& blocks : requests)
    trace.requests.push_back({.n_tokens = std::ssize(blocks), .blocks = blocks, .images = {}});
  return trace;
}

// One token a block.
ReplayOptions options_of(int64_t capacity) { return {.capacity = capacity, .disk = {}, .shared = {}}; }

int64_t count(const ReplayResult& result, HitSource source) { return result.blocks[size_t(source)]; }
int64_t images(const ReplayResult& result, HitSource source) { return result.images[size_t(source)]; }

TEST(ReplayTest, HitsAreLongestPrefixes) {
  const ReplayResult result = replay(of({{1, 2, 3}, {1, 2, 4}, {2, 3}, {1, 2, 3, 5}}), options_of(0));
  EXPECT_EQ(result.n_blocks, 12);
  EXPECT_EQ(result.n_hits, 0 + 2 + 0 + 3);
}

TEST(ReplayTest, LruAndGdsfDiffer) {
  // Room for two. 1 is requested often, the others once: LRU evicts 1 after 2 and 3, GDSF does not.
  const Trace trace = of({{1}, {1}, {1}, {2}, {3}, {1}});
  ReplayOptions options = options_of(2);
  EXPECT_EQ(replay(trace, options).n_hits, 3);
  options.order = EvictionOrder::kLru;
  EXPECT_EQ(replay(trace, options).n_hits, 2);
}

TEST(ReplayTest, TiersHoldWhatMemoryEvicts) {
  const Trace trace = of({{1, 2}, {3, 4}, {1, 2}, {5, 6}, {1, 2}});
  ReplayOptions options = options_of(2);
  options.order = EvictionOrder::kLru;
  EXPECT_EQ(replay(trace, options).n_hits, 0);
  options.disk = 0;
  options.prefixes = PrefixSaving::kAlways;
  EXPECT_EQ(count(replay(trace, options), HitSource::kDisk), 4);
  options.prefixes = PrefixSaving::kAuto;  // written before memory evicts them
  EXPECT_EQ(count(replay(trace, options), HitSource::kDisk), 4);
  options.prefixes = PrefixSaving::kOff;
  EXPECT_EQ(replay(trace, options).n_hits, 0);
  // Room for the two blocks that were used last: those of {5, 6}.
  options.prefixes = PrefixSaving::kAlways;
  options.disk = 2;
  EXPECT_EQ(replay(trace, options).n_hits, 0);
  // A prefix ends where a block is missing, whatever tiers have after it.
  options.disk = 0;
  EXPECT_EQ(replay(of({{1, 2}, {3, 4}, {7, 2}}), options).n_hits, 0);
}

TEST(ReplayTest, WhatWasUsedOnceEvictsNothingFromAFullFolder) {
  ReplayOptions options = options_of(2);
  options.order = EvictionOrder::kLru;
  options.disk = 2;
  EXPECT_EQ(count(replay(of({{1, 2}, {3, 4}, {5, 6}, {1, 2}}), options), HitSource::kDisk), 2);
  // A server evicts for it.
  options.disk.reset();
  options.shared = 2;
  EXPECT_EQ(count(replay(of({{1, 2}, {3, 4}, {5, 6}, {1, 2}}), options), HitSource::kShared), 0);
  EXPECT_EQ(count(replay(of({{1, 2}, {3, 4}, {5, 6}, {3, 4}}), options), HitSource::kShared), 2);
}

TEST(ReplayTest, ASecondUseIsWrittenFromMemory) {
  // Each replica has it in memory; the shared tier gets it from the first that uses it twice.
  ReplayOptions options = options_of(0);
  options.n_replicas = 3;
  options.shared = 0;
  const ReplayResult result = replay(of({{1}, {2}, {3}, {1}, {4}, {1}}), options);
  EXPECT_EQ(count(result, HitSource::kRam), 1);
  EXPECT_EQ(count(result, HitSource::kShared), 1);
}

TEST(ReplayTest, ReplicasShareOneTier) {
  const Trace trace = of({{1, 2}, {1, 2}, {1, 2}, {1, 2}});
  ReplayOptions options = options_of(0);
  options.n_replicas = 2;
  options.prefixes = PrefixSaving::kAlways;
  ReplayResult result = replay(trace, options);
  EXPECT_EQ(result.n_requests, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(result.n_hits, 4);  // the second requests of each
  options.disk = 0;             // each has its own
  EXPECT_EQ(replay(trace, options).n_hits, 4);
  options.shared = 0;
  result = replay(trace, options);
  EXPECT_EQ(count(result, HitSource::kShared), 2);
  EXPECT_EQ(count(result, HitSource::kRam), 4);
}

TEST(ReplayTest, TiersHaveWhatWasWrittenLater) {
  const Trace trace = of({{1}, {1}, {1}, {1}});
  ReplayOptions options = options_of(0);
  options.n_replicas = 4;
  options.shared = 0;
  options.prefixes = PrefixSaving::kAlways;
  EXPECT_EQ(replay(trace, options).n_hits, 3);
  options.delay = 1;
  EXPECT_EQ(replay(trace, options).n_hits, 2);
  options.delay = 3;
  EXPECT_EQ(replay(trace, options).n_hits, 0);
  // Two blocks take a replica that writes one from a request to the next as many requests.
  options.delay = 0;
  options.write_rate = 1;
  const Trace two = of({{1, 2}, {1, 2}, {1, 2}, {1, 2}});
  EXPECT_EQ(replay(two, options).n_hits, 1 + 2 + 2);
}

TEST(ReplayTest, Routes) {
  Trace trace = of({{1, 2}, {1, 2}, {3, 4}, {3, 4}, {1, 2, 5}});
  for (size_t i = 0; i < trace.requests.size(); ++i) trace.requests[i].session = static_cast<int64_t>(i / 2);
  ReplayOptions options = options_of(0);
  options.n_replicas = 2;
  EXPECT_EQ(replay(trace, options).n_hits, 2);
  options.route = Route::kSession;  // {1, 2} twice on the first, {3, 4} twice on the second, then the first
  EXPECT_EQ(replay(trace, options).n_hits, 6);
  options.route = Route::kPrefix;
  ReplayResult result = replay(trace, options);
  EXPECT_EQ(result.n_hits, 6);
  EXPECT_EQ(result.n_requests, (std::vector<int64_t>{3, 2}));
  // Less than half of it: the request goes to the replica that computed less.
  result = replay(of({{1, 2}, {1, 7, 8}}), options);
  EXPECT_EQ(result.n_requests, (std::vector<int64_t>{1, 1}));
  options.route = Route::kImage;
  EXPECT_THROW(replay(trace, options), Error);
  options.route = Route::kSession;
  EXPECT_THROW(replay(of({{1}}), options), Error);
}

// A prompt of `before` tokens of text, an image of 128 tokens, and 10 tokens of text; no two texts share a token.
TraceRequest about(int64_t image, int64_t before, int64_t text) {
  TraceRequest request;
  for (int64_t i = 0; i < before; ++i) request.blocks.push_back(text * 1000 + i);
  for (int64_t i = 0; i < 128; ++i) request.blocks.push_back(-image * 1000 - i);
  for (int64_t i = 0; i < 10; ++i) request.blocks.push_back(text * 1000 + 500 + i);
  request.n_tokens = std::ssize(request.blocks);
  request.images = {{.id = image, .begin = before, .n_tokens = 128}};
  return request;
}

TEST(ReplayTest, ImagesAreFoundAfterOtherTexts) {
  const Trace trace{.requests = {about(1, 5, 1), about(1, 9, 2), about(2, 5, 3), about(1, 5, 1)}, .problems = {}};
  std::vector<std::vector<HitSource>> found;
  const ReplayResult result =
      replay(trace, options_of(0), [&](const ReplayedRequest& request) { found.push_back(request.images); });
  using S = HitSource;
  EXPECT_EQ(found, (std::vector<std::vector<S>>{{S::kMiss}, {S::kRam}, {S::kMiss}, {S::kPrefix}}));
  EXPECT_EQ(result.n_images, 4);
  EXPECT_EQ(result.n_images_possible, 2);
  EXPECT_EQ(result.n_images_found(), 2);
  EXPECT_EQ(result.image_rate(), 1);
  EXPECT_EQ(result.n_hits, 5 + 128 + 10 - 1);  // the last token is computed
}

TEST(ReplayTest, ImagesEvictEachOther) {
  // Room for the KV of one image, its embeddings and a page or two.
  const Trace trace{.requests = {about(1, 5, 1), about(2, 5, 2), about(1, 5, 3)}, .problems = {}};
  EXPECT_EQ(replay(trace, options_of(300)).n_images_found(), 0);
  ReplayOptions options = options_of(300);
  options.shared = 0;
  EXPECT_EQ(images(replay(trace, options), HitSource::kShared), 1);
  options = options_of(300);
  options.disk = 0;
  EXPECT_EQ(images(replay(trace, options), HitSource::kDisk), 1);
  EXPECT_EQ(images(replay(trace, options_of(2000)), HitSource::kRam), 1);
}

TEST(ReplayTest, ImagesGoToTheReplicaThatHasThem) {
  Trace trace;
  for (int64_t i = 0; i < 40; ++i) trace.requests.push_back(about(i % 5, 5, i + 1));
  ReplayOptions options = options_of(0);
  options.n_replicas = 2;
  options.route = Route::kImage;
  EXPECT_EQ(replay(trace, options).n_images_found(), 35);
  options.route = Route::kRoundRobin;  // 5 is odd: each replica computes each image
  EXPECT_EQ(replay(trace, options).n_images_found(), 30);
  options.shared = 0;
  EXPECT_EQ(replay(trace, options).n_images_found(), 35);
}

TEST(ReplayTest, AnImageAfterAReusedOneIsRecordedAtItsSecondUse) {
  const auto with_two = [](int64_t second, int64_t text) {
    TraceRequest request = about(1, 5, text);
    const TraceRequest other = about(second, 3, text + 100);
    request.images.push_back({.id = second, .begin = request.n_tokens + 3, .n_tokens = 128});
    request.blocks.insert(request.blocks.end(), other.blocks.begin(), other.blocks.end());
    request.n_tokens += other.n_tokens;
    return request;
  };
  const Trace trace{.requests = {about(1, 5, 1), with_two(2, 2), with_two(2, 3), with_two(2, 4)}, .problems = {}};
  std::vector<std::vector<HitSource>> found;
  replay(trace, options_of(0), [&](const ReplayedRequest& request) { found.push_back(request.images); });
  using S = HitSource;
  EXPECT_EQ(found,
            (std::vector<std::vector<S>>{{S::kMiss}, {S::kRam, S::kMiss}, {S::kRam, S::kMiss}, {S::kRam, S::kRam}}));
}

TEST(ReplayTest, PromptsWithImagesAreFoundInTiers) {
  const Trace trace{.requests = {about(1, 5, 1), about(1, 5, 1)}, .problems = {}};
  ReplayOptions options = options_of(0);
  options.n_replicas = 2;
  options.shared = 0;
  options.prefixes = PrefixSaving::kAlways;
  const ReplayResult result = replay(trace, options);
  EXPECT_EQ(count(result, HitSource::kShared), 5 + 128 + 10 - 1);
  EXPECT_EQ(images(result, HitSource::kPrefix), 1);
  options.prefixes = PrefixSaving::kOff;  // then only the image's KV
  EXPECT_EQ(images(replay(trace, options), HitSource::kShared), 1);
}

TEST(ReplayTest, PromptsWithImagesAreFoundInTiersAfterOneUse) {
  const Trace trace{.requests = {about(1, 5, 1), about(1, 5, 1)}, .problems = {}};
  ReplayOptions options = options_of(0);
  options.n_replicas = 2;
  options.shared = 0;
  const ReplayResult result = replay(trace, options);
  EXPECT_EQ(images(result, HitSource::kPrefix), 1);
  EXPECT_EQ(count(result, HitSource::kShared), 5 + 128 + 10 - 1);  // the image's pages are less than nine tenths
  options.beside = 1000;                                           // never idle: the image's KV alone
  EXPECT_EQ(images(replay(trace, options), HitSource::kShared), 1);
}

// As DiskSpace and RedisTier.
TEST(ReplayTest, RecordsOfFirstUsesMakeRoomForEachOtherAlone) {
  const auto key = [](uint8_t n) { return Sha256Digest{n}; };
  ReplayTier folder(10, /*evicts_to=*/0.8), server(10, /*evicts_to=*/1);
  for (uint8_t n = 0; n < 4; ++n) folder.write(key(n), 1, RecordRank::kUsual);
  for (uint8_t n = 4; n < 100; ++n) folder.write(key(n), 1, RecordRank::kFirstUse);
  for (const uint8_t n : {0, 1, 2, 3, 99}) EXPECT_TRUE(folder.has(key(n))) << int{n};
  EXPECT_FALSE(folder.has(key(4)));
  folder.write(key(100), 4, RecordRank::kUsual);  // first uses are evicted first
  for (const uint8_t n : {0, 1, 2, 3, 100}) EXPECT_TRUE(folder.has(key(n))) << int{n};
  EXPECT_FALSE(folder.has(key(98)) && folder.has(key(99)));
  for (uint8_t n = 0; n < 100; ++n) server.write(key(n), 1, RecordRank::kFirstUse);
  EXPECT_TRUE(server.has(key(8)));  // up to nine tenths
  EXPECT_FALSE(server.has(key(9)));
  server.write(key(9), 1, RecordRank::kYields);
  server.write(key(10), 1, RecordRank::kYields);
  EXPECT_FALSE(server.has(key(0)));
}

TEST(ReplayTest, FiveHundredPagesUsedOnceLeaveTheHitsOfTen) {
  const auto n_of_ten = [](int64_t n_others, PrefixSaving when) {
    constexpr int64_t kTokens = 128;
    ReplayTier disk(replay_bytes(50, kTokens), /*evicts_to=*/0.9);
    ReplayTiers tiers;
    tiers.disk.emplace(disk, 0, 0);
    NoPages owner;
    LruClock clock;
    PrefixTree tree(64, owner, clock);
    ReplicaSaver saver(tiers, tree, {.n_elements = 64, .bytes = 64 * kTokenBytes}, when);
    const std::vector<PageGroup> groups(2, NoPages::kPage);
    const auto key_of = [](int64_t page) { return std::vector<Element>(kTokens, page); };
    const auto ask = [&](int64_t page) {
      PrefixStore::Piece piece;
      piece.begin = 0, piece.end = piece.images_end = kTokens;
      piece.key.content = replay_key({}, key_of(page));
      piece.images = {Sha256Digest{1}};
      saver.used(key_of(page), {piece}, /*cost=*/1);
      tree.insert(key_of(page), groups);
      if (tree.n_pages() > 40) tree.evict(tree.n_pages() - 40);
      saver.idle();
    };
    for (int64_t i = 0; i < 20; ++i) ask(i % 10);
    for (int64_t page = 10; page < 10 + n_others; ++page) ask(page);
    EXPECT_EQ(tiers.on_disk(replay_key({}, key_of(509))), n_others > 0);
    int64_t n = 0;
    for (int64_t page = 0; page < 10; ++page) n += tiers.on_disk(replay_key({}, key_of(page)));
    return n;
  };
  EXPECT_EQ(n_of_ten(0, PrefixSaving::kAuto), 10);
  EXPECT_EQ(n_of_ten(500, PrefixSaving::kAuto), 10);
  EXPECT_EQ(n_of_ten(500, PrefixSaving::kAlways), 0);
}

TraceRequest text(int64_t first, int64_t n = 192) {
  TraceRequest request;
  for (int64_t i = 0; i < n; ++i) request.blocks.push_back(first + i);
  request.n_tokens = n;
  return request;
}

TEST(ReplayTest, ReplicasWithDifferentHistoriesShareRecords) {
  const Trace trace{.requests = {about(1, 5, 1), text(5000), about(2, 5, 2), about(1, 5, 1)}, .problems = {}};
  ReplayOptions options = options_of(0);
  options.n_replicas = 2;
  options.shared = 0;
  options.prefixes = PrefixSaving::kAlways;
  const ReplayResult result = replay(trace, options);
  EXPECT_EQ(count(result, HitSource::kShared), 5 + 128 + 10 - 1);
  EXPECT_EQ(images(result, HitSource::kPrefix), 1);
}

TEST(ReplayTest, LoadedPrefixesAreCopiedToTheFolder) {
  Trace trace{.requests = {about(1, 5, 1), about(1, 5, 1), about(1, 5, 1), text(5000, 256), about(1, 5, 1)},
              .problems = {}};
  for (size_t i = 0; i < trace.requests.size(); ++i) trace.requests[i].session = i < 2 ? 0 : 1;
  ReplayOptions options = options_of(300);  // the text evicts the prompt
  options.n_replicas = 2;
  options.route = Route::kSession;
  options.disk = options.shared = 0;
  std::vector<HitCounts> found;
  replay(trace, options, [&](const ReplayedRequest& request) { found.push_back(request.blocks); });
  EXPECT_EQ(found[2][size_t(HitSource::kShared)], 5 + 128 + 10 - 1);  // stored at its second use
  EXPECT_EQ(found[4][size_t(HitSource::kDisk)], 5 + 128 + 10 - 1);
}

TEST(ReplayTest, AnImageAtThePromptsEndIsRecordedForOthers) {
  TraceRequest ends = about(1, 5, 1);
  ends.blocks.resize(5 + 128);
  ends.n_tokens = 5 + 128;
  const Trace trace{.requests = {ends, about(1, 9, 2)}, .problems = {}};
  EXPECT_EQ(images(replay(trace, options_of(0)), HitSource::kRam), 1);
}

TEST(ReplayTest, PromptsWithImagesAreWrittenBeforeMemoryEvictsThem) {
  const Trace trace{.requests = {text(0), text(1000), text(2000), text(0), about(1, 5, 9)}, .problems = {}};
  ReplayOptions options = options_of(256);
  EXPECT_EQ(replay(trace, options).n_hits, 0);
  options.disk = 0;
  EXPECT_EQ(count(replay(trace, options), HitSource::kDisk), 191);
}

TEST(ReplayTest, TheSameSeedGivesTheSameTimes) {
  Trace trace;
  for (int64_t i = 0; i < 200; ++i) trace.requests.push_back(about(i * i % 17, 5, i % 7));
  ReplayOptions options = options_of(1500);
  options.cost_spread = 0.5;
  options.beside = 1.5;
  const int64_t first = replay(trace, options).n_images_found();
  EXPECT_EQ(replay(trace, options).n_images_found(), first);
  bool differs = false;
  for (options.seed = 2; options.seed < 12; ++options.seed) differs |= replay(trace, options).n_images_found() != first;
  EXPECT_TRUE(differs);
}

TEST(ReplayTest, BlocksOfImagesDivideAPage) {
  const Trace trace{.requests = {about(1, 5, 1)}, .problems = {}};
  ReplayOptions options = options_of(0);
  options.block_tokens = 3;
  EXPECT_THROW(replay(trace, options), Error);
  options.block_tokens = 128;
  EXPECT_THROW(replay(trace, options), Error);
}

}  // namespace
}  // namespace vlcache
