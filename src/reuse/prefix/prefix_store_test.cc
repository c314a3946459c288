#include "reuse/prefix/prefix_store.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/factory.h"

namespace vlcache {
namespace {

class PrefixPieces : public testing::Test {
 protected:
  static std::vector<Sha256Digest> elements(int32_t n, uint8_t first = 0) {
    std::vector<Sha256Digest> elements(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) std::memcpy(elements[static_cast<size_t>(i)].data(), &i, sizeof(i));
    if (n > 0) elements[0][31] = first;
    return elements;
  }
  static std::vector<std::pair<int32_t, int32_t>> bounds(const std::vector<PrefixStore::Piece>& pieces) {
    std::vector<std::pair<int32_t, int32_t>> bounds;
    for (const PrefixStore::Piece& piece : pieces) bounds.emplace_back(piece.begin, piece.end);
    return bounds;
  }

  using Bounds = std::vector<std::pair<int32_t, int32_t>>;
  const std::unique_ptr<Backend> backend_ = make_backend("ref", DType::kF32, {});
  const KvShape shape_ = KvShape::uniform(2, 1, 4, KvCodec::kF32);
  PagePools pools_{*backend_, shape_, 1 << 20};
  TierChain chain_{{}, 1 << 20};
  PrefixStore store_{chain_, ModelFingerprint{}, shape_, pools_};
};

TEST_F(PrefixPieces, EndAfterFourPagesAtImagesAndAtTheEnd) {
  EXPECT_EQ(bounds(store_.pieces(elements(600), {})), (Bounds{{0, 256}, {256, 512}, {512, 576}, {576, 600}}));
  const auto image = [](int32_t begin, int32_t end, uint8_t key) {
    return PrefixStore::Image{begin, end, Sha256Digest{key}};
  };
  const std::vector images{image(280, 300, 1), image(301, 310, 2), image(330, 590, 3)};
  EXPECT_EQ(bounds(store_.pieces(elements(600), images)), (Bounds{{0, 256}, {256, 512}, {512, 576}, {576, 600}}));
  const auto cut = store_.pieces(elements(600), images);
  EXPECT_EQ(cut[0].images, std::vector<Sha256Digest>{});
  EXPECT_EQ(cut[1].images, (std::vector<Sha256Digest>{{1}, {2}, {3}}));  // everything after an image depends on it
  EXPECT_EQ(cut[3].images, cut[1].images);
  const std::vector early{image(5, 40, 1), image(50, 100, 2)};
  EXPECT_EQ(bounds(store_.pieces(elements(400), early)), (Bounds{{0, 64}, {64, 320}, {320, 384}, {384, 400}}));
  EXPECT_EQ(bounds(store_.pieces(elements(0), early)), Bounds{});
  EXPECT_EQ(bounds(store_.pieces(elements(256), {})), (Bounds{{0, 256}}));
}

TEST_F(PrefixPieces, PrefixesWithTheSameBeginningShareTheirRecords) {
  const std::vector image{PrefixStore::Image{10, 200, Sha256Digest{9}}};
  const auto a = store_.pieces(elements(500), image), b = store_.pieces(elements(700), image);
  ASSERT_EQ(bounds(a), (Bounds{{0, 192}, {192, 448}, {448, 500}}));
  EXPECT_EQ(a[0].key, b[0].key);
  EXPECT_EQ(a[1].key, b[1].key);
  EXPECT_FALSE(a[2].key == b[2].key);
  // Everything before a record is part of its key.
  const auto other = store_.pieces(elements(500, /*first=*/1), image);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_FALSE(a[i].key == other[i].key);
  const auto salted = store_.pieces(elements(500), image, Sha256Digest{1});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_FALSE(a[i].key == salted[i].key);
}

}  // namespace
}  // namespace vlcache
