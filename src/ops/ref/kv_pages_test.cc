#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/numeric/kv_codec.h"
#include "ops/ref/ref_backend.h"
#include "ops/ref/ref_test_util.h"

namespace vlcache {
namespace {

using ref_test::Cache;
using ref_test::kRef;
using ref_test::Matrix;

// K of slot j, head h, dimension c reads 100 j + 10 h + c, V its negative.
void number_slots(Cache& cache, int32_t n) {
  const int32_t n_heads = cache.view.n_kv_heads, d = cache.view.head_dim;
  Matrix k({n, n_heads, d}), v({n, n_heads, d});
  for (int32_t i = 0; i < n * n_heads * d; ++i) {
    k.data[static_cast<size_t>(i)] = static_cast<float>(100 * (i / (n_heads * d)) + 10 * (i / d % n_heads) + i % d);
    v.data[static_cast<size_t>(i)] = -k.data[static_cast<size_t>(i)];
  }
  kRef->kv_write(k.t, v.t, cache.view);
}

// First dimension of K of each slot.
std::vector<float> first_of_k(const Cache& cache, int head, const std::vector<int32_t>& slots) {
  const int64_t n = static_cast<int64_t>(slots.size()), d = cache.view.head_dim;
  Matrix k({n, d}), v({n, d});
  kRef->kv_read(cache.view, head, slots, k.t, v.t);
  std::vector<float> first;
  for (int64_t i = 0; i < n; ++i) {
    first.push_back(k.at(i * d));
    for (int64_t c = 0; c < d; ++c) EXPECT_EQ(v.at(i * d + c), -k.at(i * d + c));
  }
  return first;
}

TEST(RefKvPages, BytesOfAPage) {
  EXPECT_EQ(kRef->kv_page_bytes(KvCodec::kBF16, 64), 16384);
  EXPECT_EQ(kRef->kv_page_bytes(KvCodec::kF32, 80), 2 * 64 * 80 * 4);
  EXPECT_EQ(kRef->kv_page_bytes(KvCodec::kK8V4, 64), 64 * (66 + 36));
}

TEST(RefKvPages, WriteFillsTheLastSlotsOfEveryHead) {
  Cache cache(*kRef, {70, 66}, 2);
  number_slots(cache, 66);
  EXPECT_THAT(first_of_k(cache, 0, {4, 5, 69}), testing::ElementsAre(0, 100, 6500));
  EXPECT_THAT(first_of_k(cache, 1, {65, 0}), testing::ElementsAre(6510, 10));
  EXPECT_THAT(first_of_k(cache, 0, {3}), testing::ElementsAre(0)) << "slots before are untouched";
}

TEST(RefKvPages, CodecDecidesTheRounding) {
  Cache cache(*kRef, {65}, 1);
  cache.mix_codecs();  // page 0 f32, page 1 bf16
  const float fine = 1.0f + 0x1p-20f;
  Matrix k({65, 1, 1}, std::vector<float>(65, fine)), v({65, 1, 1}, std::vector<float>(65, -fine));
  kRef->kv_write(k.t, v.t, cache.view);
  EXPECT_THAT(first_of_k(cache, 0, {63, 64}), testing::ElementsAre(fine, 1.0f));
}

TEST(RefKvPages, MoveInPlaceWithOverlap) {
  Cache cache(*kRef, {130, 130}, 2);
  number_slots(cache, 130);
  const std::vector<int32_t> from = {0, 2, 3, 63, 64, 65, 129}, to = {0, 1, 2, 3, 4, 5, 6};
  kRef->kv_move(cache.view, cache.view, 1, from, to);
  EXPECT_THAT(first_of_k(cache, 1, to), testing::ElementsAre(10, 210, 310, 6310, 6410, 6510, 12910));
  EXPECT_THAT(first_of_k(cache, 0, {1, 2}), testing::ElementsAre(100, 200)) << "the other head must stay";
}

TEST(RefKvPages, MoveToAnotherCacheAndSet) {
  Cache a(*kRef, {10}, 2), b(*kRef, {100}, 2);
  number_slots(a, 10);
  number_slots(b, 100);
  kRef->kv_move(a.view, b.view, 0, std::vector<int32_t>{9, 1}, std::vector<int32_t>{70, 2});
  EXPECT_THAT(first_of_k(b, 0, {70, 2, 71}), testing::ElementsAre(900, 100, 7100));
  Matrix k({2}, {-1, -2}), v({2}, {1, 2});
  kRef->kv_set(b.view, 0, 71, k.t, v.t);
  EXPECT_THAT(first_of_k(b, 0, {70, 71, 72}), testing::ElementsAre(900, -1, 7200));
}

// Into a coded page values are encoded, slot by slot; between coded pages codes move as they are.
TEST(RefKvPages, MoveEncodes) {
  constexpr int64_t kDim = 8;
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4, KvCodec::kK8V4}) {
    Cache values(*kRef, {10}, kDim), coded(*kRef, {70}, kDim), moved(*kRef, {70}, kDim);
    coded.view.codec = moved.view.codec = codec;
    number_slots(values, 10);
    kRef->kv_move(values.view, coded.view, 0, std::vector<int32_t>{7, 3}, std::vector<int32_t>{69, 1});
    kRef->kv_move(coded.view, moved.view, 0, std::vector<int32_t>{69}, std::vector<int32_t>{2});
    Matrix k({1, kDim}), v({1, kDim});
    kRef->kv_read(moved.view, 0, std::vector<int32_t>{2}, k.t, v.t);
    const auto decoded = [](KvCodec half, float sign) {
      std::vector<float> x;
      for (int64_t c = 0; c < kDim; ++c) x.push_back(sign * static_cast<float>(700 + c));
      std::vector<std::byte> row(static_cast<size_t>(coded_bytes(half, kDim)));
      encode_head(half, x, row.data());
      decode_head(half, row.data(), x);
      return x;
    };
    EXPECT_EQ(k.data, decoded(k_codec(codec), 1.0f));
    EXPECT_EQ(v.data, decoded(v_codec(codec), -1.0f));
  }
}

}  // namespace
}  // namespace vlcache
