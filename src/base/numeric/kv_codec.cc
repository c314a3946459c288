#include "base/numeric/kv_codec.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/numeric/kv_codec_kernels.h"
#include "base/os/threads.h"

namespace vlcache {
namespace {

constexpr int64_t kValuesPerThread = 32768;  // about 10 us of work: starting a loop costs a few

const CodecKernels& kernels() {
  static const CodecKernels& best = codec_kernels().back();
  return best;
}

struct Grouping {
  int64_t group;  // values under one scale
  CodeBits bits;
  int64_t bytes(int64_t n) const {
    return static_cast<int64_t>(sizeof(bf16)) + (bits == CodeBits::k8 ? n : (n + 1) / 2);
  }
};

Grouping grouping(KvCodec codec, int64_t d) {
  CHECK((codec == KvCodec::kInt8 || codec == KvCodec::kInt4) && d <= kMaxCodedHead);
  return codec == KvCodec::kInt8 ? Grouping{d, CodeBits::k8} : Grouping{std::min(d, kInt4Group), CodeBits::k4};
}

// A row of `t` from or to f32.
void load_row(const Tensor& t, int64_t i, float* to) {
  if (t.dtype == DType::kBF16) return kernels().widen(t.row<bf16>(i), t.row_size(), to);
  std::copy_n(t.row<float>(i), t.row_size(), to);
}
void store_row(const float* from, const Tensor& t, int64_t i) {
  if (t.dtype == DType::kBF16) return kernels().round(from, t.row_size(), t.row<bf16>(i));
  std::copy_n(from, t.row_size(), t.row<float>(i));
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

int64_t rotation_block(int64_t n) { return std::min(kMaxRotation, n & -n); }

void rotate_head(KvCodec codec, std::span<float> x) {
  for_each_group(grouping(codec, std::ssize(x)), std::ssize(x),
                 [&](int64_t at, int64_t n, int64_t) { kernels().rotate(x.data() + at, n, x.data() + at); });
}

void encode_head(KvCodec codec, std::span<const float> x, std::byte* row) {
  const int64_t d = std::ssize(x);
  if (!is_coded(codec)) return store_row(x.data(), plain_row(codec, row, d), 0);
  const Grouping g = grouping(codec, d);
  for_each_group(g, d,
                 [&](int64_t at, int64_t n, int64_t byte) { kernels().encode(g.bits, x.data() + at, n, row + byte); });
}

void decode_head(KvCodec codec, const std::byte* row, std::span<float> x) {
  const int64_t d = std::ssize(x);
  if (!is_coded(codec)) return load_row(plain_row(codec, const_cast<std::byte*>(row), d), 0, x.data());  // only read
  const Grouping g = grouping(codec, d);
  for_each_group(g, d,
                 [&](int64_t at, int64_t n, int64_t byte) { kernels().decode(g.bits, row + byte, n, x.data() + at); });
}

void encode_rows(KvCodec codec, const Tensor& x, std::byte* rows) {
  const int64_t n_heads = x.dim(1), d = x.dim(2), head_bytes = coded_bytes(codec, d);
  parallel_ranges(x.rows(), kValuesPerThread / (n_heads * d) + 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> wide(static_cast<size_t>(x.dtype == DType::kF32 ? 0 : n_heads * d));
    for (int64_t i = begin; i < end; ++i) {
      if (!wide.empty()) load_row(x, i, wide.data());
      const float* values = wide.empty() ? x.row<float>(i) : wide.data();
      for (int64_t h = 0; h < n_heads; ++h) {
        encode_head(codec, {values + h * d, static_cast<size_t>(d)}, rows + (i * n_heads + h) * head_bytes);
      }
    }
  });
}

void decode_rows(KvCodec codec, const std::byte* rows, const Tensor& y) {
  const int64_t n_heads = y.dim(1), d = y.dim(2), head_bytes = coded_bytes(codec, d);
  parallel_ranges(y.rows(), kValuesPerThread / (n_heads * d) + 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> wide(static_cast<size_t>(y.dtype == DType::kF32 ? 0 : n_heads * d));
    for (int64_t i = begin; i < end; ++i) {
      float* values = wide.empty() ? y.row<float>(i) : wide.data();
      for (int64_t h = 0; h < n_heads; ++h) {
        decode_head(codec, rows + (i * n_heads + h) * head_bytes, {values + h * d, static_cast<size_t>(d)});
      }
      if (!wide.empty()) store_row(wide.data(), y, i);
    }
  });
}

}  // namespace vlcache
