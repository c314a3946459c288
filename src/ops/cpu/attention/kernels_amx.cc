// Attention over bf16 pages on AMX: pages lie as tiles of 16 pairs x 16 columns. Strips of few rows, which read pages
// faster than they multiply, stay on AVX-512.
#include <immintrin.h>

#include <algorithm>

#include "ops/cpu/amx.h"
#include "ops/cpu/attention/kernels.h"

namespace vlcache::cpu {
namespace {

constexpr int kDepth = 32;           // dimensions or slots that a product sums over
constexpr int64_t kPairBytes = 256;  // a pair of dimensions of the 64 slots of a page

// Up to 16 rows. Tiles: 0 to 3 sums, 4 left operand, 5 right operand; 6 and 7 the same for the rest of a head_dim that
// is no multiple of 32.
void use_strip_tiles(int m, int left) {
  AmxShape shape;
  for (int tile = 0; tile <= 4; ++tile) shape.set(tile, m);
  shape.set(5, 16);
  if (left > 0) {
    shape.set(6, m, 2 * left);
    shape.set(7, left / 2);
  }
  use_tiles(shape);
}

// Into the L2 cache, as Fetch in kernels_coded.cc.
void prefetch(const std::byte* p, int lines) {
  for (int i = 0; i < lines; ++i) _mm_prefetch(reinterpret_cast<const char*>(p) + 64 * i, _MM_HINT_T1);
}

// name<kTiles>: adds to the sums the products (`dot`) of tile `left`, loaded already, with kTiles tiles of the right
// operand, side by side, each loaded into tile `right`; after each, `lines` cache lines from `next` on are prefetched:
// many at once delay the tiles that are loaded after them. A macro, for the reason in amx.h.
#define VLCACHE_STRIP_PRODUCT(name, dot, left, right)                                  \
  template <int kTiles>                                                                \
  void name(const std::byte* from, int64_t stride, const std::byte* next, int lines) { \
    _tile_loadd(right, from, stride);                                                  \
    dot(0, left, right);                                                               \
    prefetch(next, lines);                                                             \
    if constexpr (kTiles > 1) {                                                        \
      _tile_loadd(right, from + 64, stride);                                           \
      dot(1, left, right);                                                             \
      prefetch(next + 64 * lines, lines);                                              \
    }                                                                                  \
    if constexpr (kTiles > 2) {                                                        \
      _tile_loadd(right, from + 128, stride);                                          \
      dot(2, left, right);                                                             \
      prefetch(next + 128 * lines, lines);                                             \
    }                                                                                  \
    if constexpr (kTiles > 3) {                                                        \
      _tile_loadd(right, from + 192, stride);                                          \
      dot(3, left, right);                                                             \
      prefetch(next + 192 * lines, lines);                                             \
    }                                                                                  \
  }
VLCACHE_STRIP_PRODUCT(multiply, _tile_dpbf16ps, 4, 5)
VLCACHE_STRIP_PRODUCT(multiply_left, _tile_dpbf16ps, 6, 7)
VLCACHE_STRIP_PRODUCT(multiply_bytes_by, _tile_dpbssd, 4, 5)
VLCACHE_STRIP_PRODUCT(multiply_last_bytes_by, _tile_dpbssd, 6, 7)  // a last part that is no whole one
#undef VLCACHE_STRIP_PRODUCT

template <int kTiles>
void scores_tiles(const ScoreTile& t) {
  zero_sums();
  const std::byte *k = t.k, *q = t.q, *next = t.prefetch;
  const int lines = next != nullptr ? (16 * t.prefetch_lines + kTiles - 1) / kTiles : 0;
  int c = 0;
  for (; c + kDepth <= t.head_dim; c += kDepth, k += 16 * kPairBytes, q += 2 * kDepth) {
    _tile_loadd(4, q, t.q_stride);
    multiply<kTiles>(k, kPairBytes, next, lines);
    if (next != nullptr) next += int64_t{64} * 16 * t.prefetch_lines;
  }
  if (c < t.head_dim) {
    _tile_loadd(6, q, t.q_stride);
    multiply_left<kTiles>(k, kPairBytes, nullptr, 0);
  }
  store_strip<kTiles>(t.s, 4 * t.s_stride);
}

// Sums [16 column, 16 (column + kTiles)) of o over n slots, a multiple of 32.
template <int kTiles>
void values_tiles(const ValueTile& t, int column, int n) {
  float* o = t.o + 16 * column;
  const int64_t o_stride = 4 * t.o_stride, v_stride = int64_t{4} * t.padded_dim;
  load_strip<kTiles>(o, o_stride);
  const int lines = t.prefetch != nullptr && column == 0 ? t.prefetch_lines : 0;
  for (int slot = 0; slot < n; slot += kDepth) {
    const int page = slot / kPageSlots, pair = slot % kPageSlots / 2;
    const std::byte* next = lines > 0 ? t.prefetch[page] + int64_t{64} * pair * lines : nullptr;
    _tile_loadd(4, t.p + 2 * slot, t.p_stride);
    multiply<kTiles>(t.v[page] + pair * v_stride + 64 * column, v_stride, next, (16 * lines + kTiles - 1) / kTiles);
  }
  store_strip<kTiles>(o, o_stride);
}

// 17 to 32 rows: 2 x 2 tiles of sums, so that a tile that is loaded serves two products. Tiles: 0 to 3 sums, 4 and 5
// left operand, 6 and 7 right operand.
void use_pair_tiles(int m) {
  AmxShape shape;
  for (int tile = 0; tile < 8; ++tile) shape.set(tile, tile < 6 && tile % 2 == 1 ? m - 16 : 16);
  use_tiles(shape);
}

// head_dim is a multiple of 32. Columns come two tiles at a time: what lies after the last one is not read.
void scores_of_pair(const ScoreTile& t) {
  use_pair_tiles(t.m);
  for (int column = 0; column < t.n; column += 32) {
    const std::byte* next = column == 0 ? t.prefetch : nullptr;
    zero_sums();
    for (int c = 0; c < t.head_dim; c += kDepth) {
      if (next != nullptr) prefetch(next + int64_t{32} * c * t.prefetch_lines, 16 * t.prefetch_lines);
      multiply_block<2, 2>(t.q + 2 * c, 16 * t.q_stride, t.q_stride, t.k + c / 2 * kPairBytes + 4 * column, kPairBytes);
    }
    store_block<2, 2>(t.s + column, 4 * t.s_stride);
  }
}

// Sums [16 column, 16 (column + kTiles)) of o over n slots, a multiple of 32.
template <int kTiles>
void values_of_pair(const ValueTile& t, int column, int n) {
  float* o = t.o + 16 * column;
  const int64_t o_stride = 4 * t.o_stride, v_stride = int64_t{4} * t.padded_dim;
  load_block<2, kTiles>(o, o_stride);
  const int lines = t.prefetch != nullptr && column == 0 ? t.prefetch_lines : 0;
  for (int slot = 0; slot < n; slot += kDepth) {
    const int page = slot / kPageSlots, pair = slot % kPageSlots / 2;
    if (lines > 0) prefetch(t.prefetch[page] + int64_t{64} * pair * lines, 16 * lines);
    multiply_block<2, kTiles>(t.p + 2 * slot, 16 * t.p_stride, t.p_stride, t.v[page] + pair * v_stride + 64 * column,
                              v_stride);
  }
  store_block<2, kTiles>(o, o_stride);
}

void scores(const ScoreTile& t) {
  const int left = t.head_dim % kDepth;
  if (t.m > 16) {
    if (left == 0) return scores_of_pair(t);
    ScoreTile half = t;
    half.m = 16;
    scores(half);
    half.m = t.m - 16, half.q += 16 * t.q_stride, half.s += 16 * t.s_stride, half.prefetch = nullptr;
    return scores(half);
  }
  use_strip_tiles(t.m, left);
  switch ((t.n + 15) / 16) {
    case 1:
      return scores_tiles<1>(t);
    case 2:
      return scores_tiles<2>(t);
    case 3:
      return scores_tiles<3>(t);
    default:
      return scores_tiles<4>(t);
  }
}

void values_tiles(const ValueTile& t, int n) {
  if (t.m > 16) {
    use_pair_tiles(t.m);
    int column = 0;
    for (; column + 2 <= t.padded_dim / 16; column += 2) values_of_pair<2>(t, column, n);
    if (column < t.padded_dim / 16) values_of_pair<1>(t, column, n);
    return;
  }
  use_strip_tiles(t.m, 0);
  for (int column = 0; column < t.padded_dim / 16; column += 4) {
    switch (t.padded_dim / 16 - column) {
      case 1:
        values_tiles<1>(t, column, n);
        break;
      case 2:
        values_tiles<2>(t, column, n);
        break;
      case 3:
        values_tiles<3>(t, column, n);
        break;
      default:
        values_tiles<4>(t, column, n);
    }
  }
}

template <int kTiles>
void multiply_bytes(const ByteTiles& t) {
  zero_sums();
  const int n_whole = t.last < 64 ? t.n_parts - 1 : t.n_parts;
  for (int part = 0; part < t.n_parts; ++part) {
    const std::byte *a = t.a + 64 * part, *b = t.b[part];
    const std::byte* next = t.prefetch != nullptr ? t.prefetch[part] : nullptr;
    const int lines = next != nullptr ? (t.prefetch_lines + kTiles - 1) / kTiles : 0;
    if (part < n_whole) {
      _tile_loadd(4, a, t.a_stride);
      multiply_bytes_by<kTiles>(b, t.b_stride, next, lines);
    } else {
      _tile_loadd(6, a, t.a_stride);
      multiply_last_bytes_by<kTiles>(b, t.b_stride, next, lines);
    }
  }
  store_strip<kTiles>(reinterpret_cast<float*>(t.sums), 4 * 64);
}

AttentionKernels avx512() {
  AttentionKernels kernels{};
  use_avx512bf16(kernels);
  return kernels;
}

constexpr size_t kCodec = static_cast<size_t>(KvCodec::kBF16);

void scores_of_any(const ScoreTile& t) {
  static const auto few_rows = avx512().scores[kCodec];
  if (t.m <= kStripRows) return few_rows(t);
  scores(t);
}

void values_of_any(const ValueTile& t) {
  static const auto few_rows = avx512().values[kCodec];
  if (t.m <= kStripRows) return few_rows(t);
  const int whole = t.n / kDepth * kDepth;
  if (whole > 0) values_tiles(t, whole);
  if (whole == t.n) return;
  // The rest of the last page: the slots after it may be NaN.
  const std::byte* v = t.v[whole / kPageSlots] + int64_t{whole % kPageSlots} * 2 * t.padded_dim;
  for (int row = 0; row < t.m; row += kStripRows) {
    few_rows({.p = t.p + row * t.p_stride + 2 * whole,
              .p_stride = t.p_stride,
              .m = std::min(t.m - row, kStripRows),
              .n = t.n - whole,
              .v = &v,
              .padded_dim = t.padded_dim,
              .o = t.o + row * t.o_stride,
              .o_stride = t.o_stride,
              .prefetch = nullptr,
              .prefetch_lines = 0,
              .prefetch_total = 0});
  }
}

}  // namespace

void multiply_bytes_amx(const ByteTiles& t) {
  AmxShape shape;
  for (int tile = 0; tile <= 4; ++tile) shape.set(tile, t.n_rows);
  shape.set(5, 16);
  // Where all parts are whole, the shape of int4's groups: then K and V have the same one.
  const int last = t.last < 64 ? t.last : static_cast<int>(kInt4Group);
  shape.set(6, t.n_rows, last);
  shape.set(7, last / 4);
  use_tiles(shape);
  read_by_tiles(t.a);
  switch (t.n / 16) {
    case 1:
      return multiply_bytes<1>(t);
    case 2:
      return multiply_bytes<2>(t);
    case 3:
      return multiply_bytes<3>(t);
    default:
      return multiply_bytes<4>(t);
  }
}

void use_amx(AttentionKernels& kernels) {
  kernels.strip_rows[kCodec] = kMostStripRows;
  kernels.scores[kCodec] = scores_of_any;
  kernels.values[kCodec] = values_of_any;
}

}  // namespace vlcache::cpu
