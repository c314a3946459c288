#include "base/numeric/kv_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/os/threads.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxBlock = 256;
constexpr int64_t kMaxHead = 1024;           // values of a head: kMaxHeadDim of ops/backend.h
constexpr int64_t kValuesPerThread = 16384;  // about 20 us of work: starting a loop costs a few

struct Grouping {
  int64_t group;  // values under one scale
  int top;        // the largest code
  int64_t bytes(int64_t n) const { return static_cast<int64_t>(sizeof(bf16)) + (top > 7 ? n : (n + 1) / 2); }
};

Grouping grouping(KvCodec codec, int64_t d) {
  CHECK(is_coded(codec));
  return codec == KvCodec::kInt8 ? Grouping{d, 127} : Grouping{std::min(d, kInt4Group), 7};
}

// x [n] = H x for each block, H of +-1 (Sylvester's order): every stage pairs the first half with the second and writes
// sums and differences side by side, so that compilers vectorise all of it. Whole numbers up to 127 times a block fit
// int16.
template <typename T>
void rotate(T* x, int64_t n, int64_t block) {
  std::array<T, kMaxBlock> other;
  for (T* begin = x; begin < x + n; begin += block) {
    T *from = begin, *to = other.data();
    for (int64_t stage = 1; stage < block; stage *= 2) {
      const T* __restrict a = from, * __restrict b = from + block / 2;
      T* __restrict y = to;
      for (int64_t i = 0; i < block / 2; ++i) {
        y[2 * i] = static_cast<T>(a[i] + b[i]);
        y[2 * i + 1] = static_cast<T>(a[i] - b[i]);
      }
      std::swap(from, to);
    }
    if (from != begin) std::copy_n(from, block, begin);
  }
}

// The least bf16 that is not below x >= 0: with it no code exceeds the largest.
bf16 rounded_up(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0xffffu) >> 16)};
}

void encode_group(const Grouping& g, float* x, int64_t n, std::byte* to) {
  const int64_t block = rotation_block(n);
  rotate(x, n, block);
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  // A code is worth `scale` in the rotated group, and 1 / block of that in every value.
  const bf16 stored = finite ? rounded_up(most / static_cast<float>(g.top)) : to_bf16(NAN);
  const float scale = to_float(stored);
  std::memcpy(to, &stored, sizeof stored);
  for (int64_t i = 0; i < n; ++i) {
    constexpr float kToWhole = 12582912.0f;  // 1.5 * 2^23: adding it rounds to even, and costs less than a call
    const float code = scale > 0 ? x[i] / scale + kToWhole - kToWhole : 0;
    x[i] = std::clamp(code, static_cast<float>(-g.top), static_cast<float>(g.top));
  }
  std::byte* codes = to + sizeof stored;
  const auto code = [&](int64_t i) { return i < n ? static_cast<int>(x[i]) : 0; };
  if (g.top > 7) {
    for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::byte>(static_cast<int>(x[i]));
  } else {
    for (int64_t i = 0; i < n; i += 2) codes[i / 2] = static_cast<std::byte>((code(i) & 15) | code(i + 1) << 4);
  }
}

// `whole` has room for n.
void decode_group(const Grouping& g, const std::byte* from, int64_t n, int16_t* whole, float* x) {
  bf16 stored;
  std::memcpy(&stored, from, sizeof stored);
  const auto* codes = reinterpret_cast<const int8_t*>(from + sizeof stored);
  if (g.top > 7) {
    for (int64_t i = 0; i < n; ++i) whole[i] = codes[i];
  } else {
    const auto low = [](int8_t pair) { return static_cast<int16_t>(static_cast<int8_t>(pair << 4) >> 4); };
    for (int64_t i = 0; i < n / 2; ++i) {
      whole[2 * i] = low(codes[i]);
      whole[2 * i + 1] = static_cast<int16_t>(codes[i] >> 4);
    }
    if (n % 2 == 1) whole[n - 1] = low(codes[n / 2]);
  }
  const int64_t block = rotation_block(n);
  rotate(whole, n, block);
  const float scale = to_float(stored) / static_cast<float>(block);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(whole[i]) * scale;
}

template <typename From, typename To>
void convert_row(const From* from, To* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_float<To>(to_float(from[i]));
}

// A row of `t` from or to f32.
void load_row(const Tensor& t, int64_t i, float* to) {
  t.dtype == DType::kBF16 ? convert_row(t.row<bf16>(i), to, t.row_size())
                          : convert_row(t.row<float>(i), to, t.row_size());
}
void store_row(const float* from, const Tensor& t, int64_t i) {
  t.dtype == DType::kBF16 ? convert_row(from, t.row<bf16>(i), t.row_size())
                          : convert_row(from, t.row<float>(i), t.row_size());
}

// A row's bytes as values.
Tensor plain_row(KvCodec codec, std::byte* row, int64_t n) {
  return {row, codec == KvCodec::kF32 ? DType::kF32 : DType::kBF16, {1, n}};
}

// visit(its values' place in the row, how many, its bytes' place in the row) of each group of one head's row.
template <typename Visit>
void for_each_group(const Grouping& g, int64_t d, const Visit& visit) {
  int64_t at = 0;
  for (int64_t i = 0; i < d; i += g.group) {
    const int64_t n = std::min(g.group, d - i);
    visit(i, n, at);
    at += g.bytes(n);
  }
}

}  // namespace

int64_t coded_bytes(KvCodec codec, int64_t d) {
  if (!is_coded(codec)) return d * (codec == KvCodec::kF32 ? 4 : 2);
  const Grouping g = grouping(codec, d);
  return d / g.group * g.bytes(g.group) + (d % g.group > 0 ? g.bytes(d % g.group) : 0);
}

int64_t rotation_block(int64_t n) { return std::min(kMaxBlock, n & -n); }

void rotate_head(KvCodec codec, std::span<float> x) {
  for_each_group(grouping(codec, std::ssize(x)), std::ssize(x),
                 [&](int64_t at, int64_t n, int64_t) { rotate(x.data() + at, n, rotation_block(n)); });
}

void encode_head(KvCodec codec, std::span<const float> x, std::byte* row) {
  const int64_t d = std::ssize(x);
  if (is_coded(codec)) {
    const Grouping g = grouping(codec, d);
    std::array<float, kMaxHead> values;
    CHECK(d <= kMaxHead);
    std::ranges::copy(x, values.begin());
    for_each_group(g, d,
                   [&](int64_t at, int64_t n, int64_t byte) { encode_group(g, values.data() + at, n, row + byte); });
    return;
  }
  store_row(x.data(), plain_row(codec, row, d), 0);
}

void decode_head(KvCodec codec, const std::byte* row, std::span<float> x) {
  const int64_t d = std::ssize(x);
  if (is_coded(codec)) {
    const Grouping g = grouping(codec, d);
    std::array<int16_t, kMaxHead> whole;
    CHECK(d <= kMaxHead);
    for_each_group(g, d, [&](int64_t at, int64_t n, int64_t byte) {
      decode_group(g, row + byte, n, whole.data(), x.data() + at);
    });
    return;
  }
  load_row(plain_row(codec, const_cast<std::byte*>(row), d), 0, x.data());  // only read
}

void encode_rows(KvCodec codec, const Tensor& x, std::byte* rows) {
  const int64_t n_heads = x.dim(1), d = x.dim(2), head_bytes = coded_bytes(codec, d);
  parallel_ranges(x.rows(), kValuesPerThread / (n_heads * d) + 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> values(static_cast<size_t>(n_heads * d));
    for (int64_t i = begin; i < end; ++i) {
      load_row(x, i, values.data());
      for (int64_t h = 0; h < n_heads; ++h) {
        encode_head(codec, {values.data() + h * d, static_cast<size_t>(d)}, rows + (i * n_heads + h) * head_bytes);
      }
    }
  });
}

void decode_rows(KvCodec codec, const std::byte* rows, const Tensor& y) {
  const int64_t n_heads = y.dim(1), d = y.dim(2), head_bytes = coded_bytes(codec, d);
  parallel_ranges(y.rows(), kValuesPerThread / (n_heads * d) + 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> values(static_cast<size_t>(n_heads * d));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = 0; h < n_heads; ++h) {
        decode_head(codec, rows + (i * n_heads + h) * head_bytes, {values.data() + h * d, static_cast<size_t>(d)});
      }
      store_row(values.data(), y, i);
    }
  });
}

}  // namespace vlcache
