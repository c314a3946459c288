#include "ops/cpu/attention/kv_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/numeric/kv_codec.h"
#include "ops/cpu/attention/attention_test_util.h"

namespace vlcache::cpu {
namespace {

using testing::Rows;

// Some heads' pages in one pool per codec.
struct Store {
  KvCodec codec;
  int d, heads, n_pages;
  std::vector<int32_t> pages, n_slots;
  Buffer pool;

  Store(KvCodec codec_in, int d_in, int heads_in, int slots)
      : codec(codec_in),
        d(d_in),
        heads(heads_in),
        n_pages((slots + kPageSlots - 1) / kPageSlots),
        pages(static_cast<size_t>(heads * n_pages)),
        n_slots(static_cast<size_t>(heads), slots),
        pool(heads * n_pages * kv_page_bytes(codec, d)) {
    std::iota(pages.rbegin(), pages.rend(), 0);  // last page first
    std::memset(pool.data(), 0xff, static_cast<size_t>(pool.bytes()));
  }
  KvView view() const {
    KvView view{.pages = pages.data(),
                .n_slots = n_slots.data(),
                .page_stride = n_pages,
                .n_kv_heads = heads,
                .head_dim = d,
                .codec = codec};
    view.pools[static_cast<int>(codec)] = {pool.data(), kv_page_bytes(codec, d)};
    return view;
  }
  // K and V of one slot, one after the other.
  std::vector<float> slot(int head, int32_t at) const {
    std::vector<float> x(static_cast<size_t>(2 * d));
    const int32_t slots[] = {at};
    kv_read(view(), head, slots, Tensor(x.data(), DType::kF32, {1, d}), Tensor(x.data() + d, DType::kF32, {1, d}));
    return x;
  }
};

Tensor tensor(Rows& r, int64_t n, int64_t heads, int64_t d) { return Tensor(r.bytes.data(), r.dtype, {n, heads, d}); }

// Values of a row [column, column + d), as the half of a page with this codec holds them.
std::vector<float> stored(KvCodec codec, const Rows& rows, int64_t row, int64_t column, int64_t d) {
  std::vector<float> x;
  for (int64_t c = 0; c < d; ++c) x.push_back(rows.value(row, column + c));
  std::vector<std::byte> bytes(static_cast<size_t>(coded_bytes(codec, d)));
  encode_head(codec, x, bytes.data());
  decode_head(codec, bytes.data(), x);
  return x;
}

void expect_slot(const std::vector<float>& got, const Rows& k, const Rows& v, int64_t row, int64_t column,
                 KvCodec codec) {
  const int64_t d = static_cast<int64_t>(got.size()) / 2;
  std::vector<float> expected = stored(k_codec(codec), k, row, column, d);
  const std::vector<float> values = stored(v_codec(codec), v, row, column, d);
  expected.insert(expected.end(), values.begin(), values.end());
  ASSERT_EQ(got, expected);
}

class KvPagesTest : public ::testing::TestWithParam<std::tuple<KvCodec, int>> {
 protected:
  KvCodec codec = std::get<0>(GetParam());
  int d = std::get<1>(GetParam());
  std::mt19937 rng{9};
};

using CodedPagesTest = KvPagesTest;

TEST_P(KvPagesTest, ReadsBackWrittenRows) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int n_rows : {1, 2, 17, 81, 200}) {
      Store store(codec, d, 3, 200);
      store.n_slots = {200, 131, 64};
      Rows k(n_rows, 3 * d, dtype, rng), v(n_rows, 3 * d, dtype, rng);
      kv_write(tensor(k, n_rows, 3, d), tensor(v, n_rows, 3, d), store.view());
      for (int head = 0; head < 3; ++head) {
        for (int i = 0; i < n_rows; ++i) {
          const int slot = store.n_slots[static_cast<size_t>(head)] - n_rows + i;
          if (slot >= 0) expect_slot(store.slot(head, slot), k, v, i, head * d, codec);
        }
      }
    }
  }
}

// Rows one by one and all at once make the same page, padding included.
TEST_P(KvPagesTest, RowsOneByOne) {
  Store all(codec, d, 2, 70), single(codec, d, 2, 70);
  Rows k(70, 2 * d, DType::kF32, rng), v(70, 2 * d, DType::kF32, rng);
  const Tensor tk = tensor(k, 70, 2, d), tv = tensor(v, 70, 2, d);
  kv_write(tk, tv, all.view());
  for (int i = 0; i < 70; ++i) {
    single.n_slots = {i + 1, i + 1};
    kv_write(tk.slice_rows(i, i + 1), tv.slice_rows(i, i + 1), single.view());
  }
  EXPECT_EQ(std::memcmp(all.pool.data(), single.pool.data(), static_cast<size_t>(all.pool.bytes())), 0);
}

TEST_P(KvPagesTest, StridedRowsOfAFusedProjection) {
  Store store(codec, d, 2, 90);
  Rows fused(90, 7 * d, DType::kBF16, rng);
  const Tensor rows(fused.bytes.data(), DType::kBF16, {90, 7 * d});
  kv_write(rows.columns(3 * d, 5 * d).view({90, 2, d}), rows.columns(5 * d, 7 * d).view({90, 2, d}), store.view());
  const std::vector<float> got = store.slot(1, 77), k = stored(k_codec(codec), fused, 77, 4 * d, d),
                           v = stored(v_codec(codec), fused, 77, 6 * d, d);
  EXPECT_TRUE(std::equal(k.begin(), k.end(), got.begin()));
  EXPECT_TRUE(std::equal(v.begin(), v.end(), got.begin() + d));
}

TEST_P(KvPagesTest, HalfPrecisionRows) {
  Store store(codec, d, 1, 3);
  std::vector<uint16_t> ones(static_cast<size_t>(3 * d), 0x3c00), halves(ones.size(), 0x3800);  // 1 and 0.5
  kv_write(Tensor(ones.data(), DType::kF16, {3, 1, d}), Tensor(halves.data(), DType::kF16, {3, 1, d}), store.view());
  const auto step = [](KvCodec half) {
    return half == KvCodec::kInt4 ? 0x1p-3f : is_coded(half) ? 0x1p-7f : 0;  // half of the largest value / 7 or 127
  };
  for (int c = 0; c < d; ++c) {
    EXPECT_NEAR(store.slot(0, 2)[static_cast<size_t>(c)], 1.0f, step(k_codec(codec)));
    EXPECT_NEAR(store.slot(0, 2)[static_cast<size_t>(d + c)], 0.5f, step(v_codec(codec)));
  }
}

TEST_P(KvPagesTest, SetChangesOneSlot) {
  Store store(codec, d, 2, 66);
  Rows k(66, 2 * d, DType::kF32, rng), v(66, 2 * d, DType::kF32, rng), nk(1, d, DType::kF32, rng),
      nv(1, d, DType::kF32, rng);
  kv_write(tensor(k, 66, 2, d), tensor(v, 66, 2, d), store.view());
  for (int slot : {0, 31, 65}) {
    kv_set(store.view(), 1, slot, Tensor(nk.bytes.data(), DType::kF32, {d}), Tensor(nv.bytes.data(), DType::kF32, {d}));
  }
  for (int slot = 0; slot < 66; ++slot) {
    const bool changed = slot == 0 || slot == 31 || slot == 65;
    expect_slot(store.slot(0, slot), k, v, slot, 0, codec);
    expect_slot(store.slot(1, slot), changed ? nk : k, changed ? nv : v, changed ? 0 : slot, changed ? 0 : d, codec);
  }
}

// Compaction in place: every kept slot moves down, the rest of the head stays readable until it is overwritten.
TEST_P(KvPagesTest, MovesDownInPlace) {
  for (int keep_every : {1, 2, 3, 50}) {
    Store store(codec, d, 2, 300);
    Rows k(300, 2 * d, DType::kF32, rng), v(300, 2 * d, DType::kF32, rng);
    kv_write(tensor(k, 300, 2, d), tensor(v, 300, 2, d), store.view());
    std::vector<int32_t> from, to;
    for (int32_t i = 0; i < 300; ++i) {
      if (i < 10 || i % keep_every == 0) from.push_back(i), to.push_back(static_cast<int32_t>(to.size()));
    }
    kv_move(store.view(), store.view(), 1, {from, to});
    for (size_t i = 0; i < to.size(); ++i) expect_slot(store.slot(1, to[i]), k, v, from[i], d, codec);
    for (int i = 0; i < 300; ++i) expect_slot(store.slot(0, i), k, v, i, 0, codec);
  }
}

TEST_P(KvPagesTest, MovesToOtherPages) {
  Store src(codec, d, 2, 300), dst(codec, d, 2, 300);
  Rows k(300, 2 * d, DType::kF32, rng), v(300, 2 * d, DType::kF32, rng), ok(300, 2 * d, DType::kF32, rng),
      ov(300, 2 * d, DType::kF32, rng);
  kv_write(tensor(k, 300, 2, d), tensor(v, 300, 2, d), src.view());
  kv_write(tensor(ok, 300, 2, d), tensor(ov, 300, 2, d), dst.view());
  std::vector<int32_t> from, to, source(300, -1);
  const auto move = [&](int32_t a, int32_t b) {
    from.push_back(a), to.push_back(b), source[static_cast<size_t>(b)] = a;
  };
  for (int32_t i = 0; i < 64; ++i) move(64 + i, 64 + i);    // a whole page
  for (int32_t i = 0; i < 64; ++i) move(128 + i, 131 + i);  // shifted by an odd number, over two pages
  for (int32_t i = 0; i < 9; ++i) move(200 + 3 * i, 210 + i);
  kv_move(src.view(), dst.view(), 0, {from, to});
  for (int32_t i = 0; i < 300; ++i) {
    const int32_t a = source[static_cast<size_t>(i)];
    expect_slot(dst.slot(0, i), a >= 0 ? k : ok, a >= 0 ? v : ov, a >= 0 ? a : i, 0, codec);
    expect_slot(dst.slot(1, i), ok, ov, i, d, codec);
  }
}

// The code of value c of a row that encode_head made, and byte i of its group's scale.
int code_of(KvCodec codec, const std::vector<std::byte>& row, int c) {
  if (codec == KvCodec::kInt8) return static_cast<int8_t>(row[static_cast<size_t>(2 + c)]);
  const int group = c / 32 * 18 + 2, pair = static_cast<int>(row[static_cast<size_t>(group + c % 32 / 2)]);
  return (((c % 2 == 0 ? pair : pair >> 4) & 15) ^ 8) - 8;
}
std::byte scale_byte(KvCodec codec, const std::vector<std::byte>& row, int c, int i) {
  return row[static_cast<size_t>((codec == KvCodec::kInt8 ? 0 : c / 32 * 18) + i)];
}

// Where kv_pages.h puts codes and scales of a slot: of each half, whose codec is its part of the page's.
TEST(CodedPages, Layout) {
  struct Half {
    KvCodec codec;
    int64_t width, n_scales;  // codes and scales of a slot
    bool int8() const { return codec == KvCodec::kInt8; }
    int64_t scales() const { return 64 * width * (int8() ? 8 : 4) / 8; }
    int64_t bytes() const { return scales() + 128 * n_scales; }
  };
  for (const auto& [codec, d, dp] :
       {std::tuple{KvCodec::kInt8, 20, 32}, std::tuple{KvCodec::kInt4, 72, 80}, std::tuple{KvCodec::kK8V4, 72, 80}}) {
    const Half k_half{k_codec(codec), d, codec == KvCodec::kInt4 ? 3 : 1},
        v_half{v_codec(codec), dp, codec == KvCodec::kInt8 ? 1 : 3};
    Store store(codec, d, 1, 64);
    std::mt19937 rng(3);
    Rows k(64, d, DType::kF32, rng), v(64, d, DType::kF32, rng);
    kv_write(tensor(k, 64, 1, d), tensor(v, 64, 1, d), store.view());
    ASSERT_EQ(store.pool.bytes(), k_half.bytes() + v_half.bytes());
    const std::byte *k_data = store.pool.data(), *v_data = k_data + k_half.bytes();
    const auto code = [](const Half& half, std::byte byte, bool high) {
      if (half.int8()) return int{static_cast<int8_t>(byte)};
      return ((static_cast<int>(byte) >> (high ? 4 : 0) & 15) ^ 8) - 8;
    };
    const auto encoded = [&](const Half& half, Rows& rows, int slot) {
      std::vector<std::byte> row(static_cast<size_t>(coded_bytes(half.codec, d)));
      encode_head(half.codec, std::span(reinterpret_cast<float*>(rows.bytes.data()) + slot * d, static_cast<size_t>(d)),
                  row.data());
      return row;
    };
    for (int slot = 0; slot < 64; ++slot) {
      const std::vector<std::byte> k_row = encoded(k_half, k, slot), v_row = encoded(v_half, v, slot);
      for (int c = 0; c < dp; ++c) {
        SCOPED_TRACE(std::string(kv_codec_name(codec)) + " " + std::to_string(slot) + " " + std::to_string(c));
        const int k_at = c / (k_half.int8() ? 4 : 8) * 256 + slot * 4 + c % 4;
        const int v_at = slot / (v_half.int8() ? 4 : 8) * 4 * dp + 4 * c + slot % 4;
        ASSERT_EQ(code(v_half, v_data[v_at], slot % 8 >= 4), c < d ? code_of(v_half.codec, v_row, c) : 0);
        if (c >= d) continue;
        ASSERT_EQ(code(k_half, k_data[k_at], c % 8 >= 4), code_of(k_half.codec, k_row, c));
        for (int i = 0; i < 2; ++i) {
          const int64_t k_group = k_half.int8() ? 0 : c / 32, v_group = v_half.int8() ? 0 : c / 32;
          ASSERT_EQ(k_data[k_half.scales() + (k_group * 64 + slot) * 2 + i], scale_byte(k_half.codec, k_row, c, i));
          ASSERT_EQ(v_data[v_half.scales() + (v_group * 64 + slot) * 2 + i], scale_byte(v_half.codec, v_row, c, i));
        }
      }
    }
  }
}

// Slots of a page of values, from any first slot and of any number, become the codes of their rows.
TEST_P(CodedPagesTest, EncodesValues) {
  for (KvCodec values : {KvCodec::kF32, KvCodec::kBF16}) {
    Store src(values, d, 1, 300), dst(codec, d, 1, 300);
    Rows k(300, d, DType::kBF16, rng), v(300, d, DType::kBF16, rng), ok(300, d, DType::kF32, rng),
        ov(300, d, DType::kF32, rng);
    kv_write(tensor(k, 300, 1, d), tensor(v, 300, 1, d), src.view());
    kv_write(tensor(ok, 300, 1, d), tensor(ov, 300, 1, d), dst.view());
    std::vector<int32_t> from, to, source(300, -1);
    const auto move = [&](int32_t a, int32_t b) {
      from.push_back(a), to.push_back(b), source[static_cast<size_t>(b)] = a;
    };
    for (int32_t i = 0; i < 64; ++i) move(128 + i, 64 + i);  // a whole page
    for (int32_t i = 0; i < 41; ++i) move(193 + i, 3 + i);   // odd on both sides
    for (int32_t i = 0; i < 9; ++i) move(2 + 3 * i, 160 + 2 * i);
    for (int32_t i = 0; i < 70; ++i) move(230 + i, 190 + i);  // over page ends
    kv_move(src.view(), dst.view(), 0, {from, to});
    for (int32_t i = 0; i < 300; ++i) {
      const int32_t a = source[static_cast<size_t>(i)];
      expect_slot(dst.slot(0, i), a >= 0 ? k : ok, a >= 0 ? v : ov, a >= 0 ? a : i, 0, codec);
    }
  }
}

// A row with a value that is not finite is NaN, a row of zeros is zeros, and neither changes a byte of its neighbours,
// whether they are written together or later.
TEST_P(CodedPagesTest, OddRowsTouchNoNeighbour) {
  Store plain(codec, d, 1, 64), odd(codec, d, 1, 64);
  Rows k(64, d, DType::kF32, rng), v(64, d, DType::kF32, rng);
  kv_write(tensor(k, 64, 1, d), tensor(v, 64, 1, d), plain.view());
  const auto put = [&](int row, int column, float x) {
    for (Rows* rows : {&k, &v}) reinterpret_cast<float*>(rows->bytes.data())[row * d + column] = x;
  };
  put(5, d - 1, NAN), put(6, 0, INFINITY), put(31, d / 2, -INFINITY);
  for (int c = 0; c < d; ++c) put(40, c, 0), put(63, c, -0.0f);
  kv_write(tensor(k, 64, 1, d), tensor(v, 64, 1, d), odd.view());
  for (int slot = 0; slot < 64; ++slot) {
    const std::vector<float> got = odd.slot(0, slot);
    const bool bad = slot == 5 || slot == 6 || slot == 31, zero = slot == 40 || slot == 63;
    if (bad) {
      const auto last_group = [&](KvCodec half) {
        const int64_t group = half == KvCodec::kInt8 ? d : std::min<int64_t>(d, kInt4Group);
        return d % group > 0 ? d % group : group;
      };
      EXPECT_GE(std::ranges::count_if(got, [](float x) { return std::isnan(x); }),
                last_group(k_codec(codec)) + last_group(v_codec(codec)));
    } else {
      EXPECT_EQ(got, zero ? std::vector<float>(static_cast<size_t>(2 * d), 0) : plain.slot(0, slot)) << slot;
    }
    if (bad || zero) {  // the first row again
      const std::vector<int32_t> slots{slot};
      kv_move(plain.view(), odd.view(), 0, {slots, slots});
    }
  }
  EXPECT_EQ(std::memcmp(odd.pool.data(), plain.pool.data(), static_cast<size_t>(plain.pool.bytes())), 0);
}

// Codes cannot become values again.
TEST(CodedPages, MoveToValuesFails) {
  Store src(KvCodec::kInt8, 64, 1, 64), dst(KvCodec::kBF16, 64, 1, 64);
  const std::vector<int32_t> slots{3};
  const CheckScope scope(CheckScope::Failure::kThrow);
  EXPECT_THROW(kv_move(src.view(), dst.view(), 0, {slots, slots}), Error);
}

TEST(KvPageBytes, AreWholeCacheLines) {
  EXPECT_EQ(kv_page_bytes(KvCodec::kBF16, 64), 16384);
  EXPECT_EQ(kv_page_bytes(KvCodec::kF32, 64), 32768);
  EXPECT_EQ(kv_page_bytes(KvCodec::kBF16, 72), 64 * 2 * (72 + 80));  // V is padded to whole vectors
  EXPECT_EQ(kv_page_bytes(KvCodec::kInt8, 64), 2 * 64 * 66);
  EXPECT_EQ(kv_page_bytes(KvCodec::kInt4, 64), 2 * 64 * 36);
  EXPECT_EQ(kv_page_bytes(KvCodec::kK8V4, 64), 64 * (66 + 36));
  for (int d = 8; d < 300; d += 4) {
    for (KvCodec codec : {KvCodec::kBF16, KvCodec::kInt8, KvCodec::kK8V4}) EXPECT_EQ(kv_page_bytes(codec, d) % 64, 0);
    EXPECT_EQ(kv_page_bytes(KvCodec::kInt4, 2 * d) % 64, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, KvPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kF32, KvCodec::kBF16),
                                            ::testing::Values(8, 30, 64, 72, 128)));
INSTANTIATE_TEST_SUITE_P(Int8, KvPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kInt8), ::testing::Values(8, 20, 64, 72)));
INSTANTIATE_TEST_SUITE_P(Int4, KvPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kInt4), ::testing::Values(8, 24, 64, 72)));
INSTANTIATE_TEST_SUITE_P(K8V4, KvPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kK8V4), ::testing::Values(20, 72)));
INSTANTIATE_TEST_SUITE_P(Int8, CodedPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kInt8),
                                            ::testing::Values(20, 32, 64, 80, 96, 128, 256)));
INSTANTIATE_TEST_SUITE_P(Int4, CodedPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kInt4),
                                            ::testing::Values(24, 32, 64, 80, 96, 128, 256)));
INSTANTIATE_TEST_SUITE_P(K8V4, CodedPagesTest,
                         ::testing::Combine(::testing::Values(KvCodec::kK8V4), ::testing::Values(20, 64, 80)));

}  // namespace
}  // namespace vlcache::cpu
