// Attention over bf16 pages with the AVX-512 bf16 dot product: two multiply-adds per lane and instruction, f32
// accumulators.
#include <immintrin.h>

#include <cstring>
#include <limits>
#include <utility>

#include "ops/cpu/attention/kernels.h"

namespace vlcache::cpu {
namespace {

// Minimax polynomial of 2^f on [-1/2, 1/2], lowest degree first.
constexpr float kShortExp2[5] = {0.99999928f, 0.69312179f, 0.24024744f, 0.055917859f, 0.0095701021f};

// Two neighbouring bf16 in every lane.
inline __m512bh pair_at(const std::byte* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}
inline __m512bh load(const std::byte* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }

// Into the L2 cache, as Fetch in kernels_coded.cc.
inline void prefetch(const std::byte* p, int lines) {
  for (int i = 0; i < lines; ++i) _mm_prefetch(reinterpret_cast<const char*>(p) + 64 * i, _MM_HINT_T1);
}

template <int MR, int NR>
void scores_tile(const ScoreTile& t) {
  __m512 acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_setzero_ps();
  const std::byte *k = t.k, *q = t.q, *next = t.prefetch;
  const int lines = next != nullptr ? t.prefetch_lines : 0;
  for (int c = 0; c < t.head_dim; c += 2, k += 256, q += 4, next += 64 * lines) {
    prefetch(next, lines);
    __m512bh b[NR];
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) b[j] = load(k + 64 * j);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const __m512bh a = pair_at(q + i * t.q_stride);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], a, b[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) _mm512_storeu_ps(t.s + i * t.s_stride + 16 * j, acc[i][j]);
}

// Columns [16 column, 16 (column + NR)) of o, all pages.
template <int MR, int NR>
void values_tile(const ValueTile& t, int column) {
  __m512 acc[MR][NR];
  float* o = t.o + 16 * column;
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_loadu_ps(o + i * t.o_stride + 16 * j);
  const int64_t row_bytes = int64_t{4} * t.padded_dim;
  const std::byte* p = t.p;
  const int lines = t.prefetch != nullptr && column == 0 ? t.prefetch_lines : 0;
  for (int begin = 0; begin < t.n; begin += kPageSlots) {
    const std::byte* v = t.v[begin / kPageSlots] + 64 * column;
    const std::byte* next = lines > 0 ? t.prefetch[begin / kPageSlots] : nullptr;
    const int n = t.n - begin < kPageSlots ? t.n - begin : kPageSlots;
    for (int s = 0; s + 1 < n; s += 2, v += row_bytes, p += 4, next += 64 * lines) {
      prefetch(next, lines);
      __m512bh b[NR];
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) b[j] = load(v + 64 * j);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const __m512bh a = pair_at(p + i * t.p_stride);
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], a, b[j]);
      }
    }
    if (n % 2 != 0) {  // the pair has no second slot: the memory in its place may be NaN
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) {
        const __m512i pairs = _mm512_loadu_si512(v + 64 * j);
        const __m512bh b = reinterpret_cast<__m512bh>(_mm512_maskz_mov_epi16(0x55555555u, pairs));
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], pair_at(p + i * t.p_stride), b);
      }
      p += 4;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) _mm512_storeu_ps(o + i * t.o_stride + 16 * j, acc[i][j]);
}

template <int MR>
void scores_rows(const ScoreTile& t) {
  switch ((t.n + 15) / 16) {
    case 1:
      return scores_tile<MR, 1>(t);
    case 2:
      return scores_tile<MR, 2>(t);
    case 3:
      return scores_tile<MR, 3>(t);
    default:
      return scores_tile<MR, 4>(t);
  }
}

template <int MR>
void values_rows(const ValueTile& t) {
  int column = 0, left = t.padded_dim / 16;
  while (left > 0) {
    // head_dim 72 and 80: five vectors at once (25 accumulators) rather than 3 + 2, if the strip is short enough.
    if (left == 5 && MR <= 5) return values_tile < MR <= 5 ? MR : 5, 5 > (t, column);
    const int n = left == 5 || left == 6 ? 3 : left < 4 ? left : 4;
    switch (n) {
      case 1:
        values_tile<MR, 1>(t, column);
        break;
      case 2:
        values_tile<MR, 2>(t, column);
        break;
      case 3:
        values_tile<MR, 3>(t, column);
        break;
      default:
        values_tile<MR, 4>(t, column);
        break;
    }
    column += n;
    left -= n;
  }
}

void scores(const ScoreTile& t) {
  switch (t.m) {
    case 1:
      return scores_rows<1>(t);
    case 2:
      return scores_rows<2>(t);
    case 3:
      return scores_rows<3>(t);
    case 4:
      return scores_rows<4>(t);
    case 5:
      return scores_rows<5>(t);
    default:
      return scores_rows<6>(t);
  }
}

void values(const ValueTile& t) {
  switch (t.m) {
    case 1:
      return values_rows<1>(t);
    case 2:
      return values_rows<2>(t);
    case 3:
      return values_rows<3>(t);
    case 4:
      return values_rows<4>(t);
    case 5:
      return values_rows<5>(t);
    default:
      return values_rows<6>(t);
  }
}

// 2^x to 2.6e-6, far below the rounding of the weights to bf16; 0 for x below the range of f32.
inline __m512 exp2(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_set1_ps(kShortExp2[4]);
#pragma GCC unroll 8
  for (int i = 3; i >= 0; --i) y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kShortExp2[i]));
  return _mm512_scalef_ps(y, n);
}

void rescale(const SoftmaxTile& t, int i, float factor) {
  const __m512 f = _mm512_set1_ps(factor);
  float* total = t.total + 16 * i;
  _mm512_storeu_ps(total, _mm512_mul_ps(_mm512_loadu_ps(total), f));
  float* o = t.o + i * t.o_stride;
  for (int c = 0; c < t.padded_dim; c += 16) _mm512_storeu_ps(o + c, _mm512_mul_ps(_mm512_loadu_ps(o + c), f));
}

// p times the weights of its columns; exactly 0 where p is.
inline __m512 weighted(__m512 p, const float* weight) {
  const __mmask16 seen = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  return _mm512_maskz_mul_ps(seen, p, _mm512_loadu_ps(weight));
}

// To bf16, or f32.
template <bool kWeighted, bool kToF32>
void softmax_of(const SoftmaxTile& t) {
  const __m512 scale = _mm512_set1_ps(t.scale);
  for (int i = 0; i < t.m; ++i) {
    const float* s = t.s + i * t.s_stride;
    __m512 largest = _mm512_loadu_ps(s);
    for (int j = 16; j < t.n; j += 16) largest = _mm512_max_ps(largest, _mm512_loadu_ps(s + j));
    largest = _mm512_mul_ps(largest, scale);
    if (_mm512_cmp_ps_mask(largest, _mm512_set1_ps(t.top[i] + 8.0f), _CMP_GT_OQ) != 0) {
      const float top = _mm512_reduce_max_ps(largest);
      rescale(t, i, _mm512_cvtss_f32(exp2(_mm512_set1_ps(t.top[i] - top))));
      t.top[i] = top;
    }
    const __m512 top = _mm512_set1_ps(t.top[i]);
    __m512 total = _mm512_loadu_ps(t.total + 16 * i);
    std::byte* p = t.p + i * t.p_stride;
    int j = 0;
    for (; j + 32 <= t.n; j += 32) {
      __m512 a = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, top));
      __m512 b = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j + 16), scale, top));
      total = _mm512_add_ps(total, _mm512_add_ps(a, b));
      if constexpr (kWeighted) a = weighted(a, t.weight + j), b = weighted(b, t.weight + j + 16);
      if constexpr (kToF32) {
        _mm512_storeu_ps(p + 4 * j, a);
        _mm512_storeu_ps(p + 4 * j + 64, b);
      } else {
        _mm512_storeu_si512(p + 2 * j, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
      }
    }
    if (j < t.n) {
      __m512 a = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, top));
      total = _mm512_add_ps(total, a);
      if constexpr (kWeighted) a = weighted(a, t.weight + j);
      if constexpr (kToF32) {
        _mm512_storeu_ps(p + 4 * j, a);
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 2 * j), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
      }
    }
    _mm512_storeu_ps(t.total + 16 * i, total);
  }
}

void softmax_codes(const SoftmaxTile& t) {
  t.weight != nullptr ? softmax_of<true, true>(t) : softmax_of<false, true>(t);
}

void softmax(const SoftmaxTile& t) { t.weight != nullptr ? softmax_of<true, false>(t) : softmax_of<false, false>(t); }

// Signed bytes kByte and kByte + 1 of every lane as a pair of bf16: whole numbers up to 127 have its 8 bits.
template <int kByte>
inline __m512i pairs_of(__m512i codes) {
  const __m512 a = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(codes, 24 - 8 * kByte), 24));
  const __m512 b = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(codes, 16 - 8 * kByte), 24));
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b));
}

// Codes of four, side by side, become two lines of pairs: from [n, width, 4] to [2 n, width, 2].
void code_values(const std::byte* from, int64_t n, int64_t width, std::byte* to) {
  for (int64_t line = 0; line < n; ++line, to += 8 * width) {
    for (int64_t j = 0; j < width; j += 16, from += 64) {
      const __m512i codes = _mm512_loadu_si512(from);
      _mm512_storeu_si512(to + 4 * j, pairs_of<0>(codes));
      _mm512_storeu_si512(to + 4 * (width + j), pairs_of<2>(codes));
    }
  }
}

// Two codes of four bits of each word, which begin at bits kFirst and kFirst + 8, times their scales, as a pair.
template <int kFirst>
inline __m512i scaled_pair(__m512i words, __m512 first, __m512 second) {
  const __m512i a = _mm512_srai_epi32(_mm512_slli_epi32(words, 28 - kFirst), 28);
  const __m512i b = _mm512_srai_epi32(_mm512_slli_epi32(words, 20 - kFirst), 28);
  const __m512 low = _mm512_mul_ps(_mm512_cvtepi32_ps(a), first), high = _mm512_mul_ps(_mm512_cvtepi32_ps(b), second);
  const auto halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));  // 16 of low, 16 of high
  const __m512i evens = _mm512_cvtepu16_epi32(_mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm512_permutexvar_epi16(
      _mm512_or_si512(evens, _mm512_slli_epi32(_mm512_add_epi32(evens, _mm512_set1_epi32(16)), 16)), halves);
}

inline __m512 widened(const bf16* scales) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Of int8, without scales.
void int8_k_values(const std::byte* k, int64_t d, std::byte* to) { code_values(k, d / 4, kPageSlots, to); }
uint64_t int8_v_values(const std::byte* v, int64_t padded_dim, std::byte* to) {
  code_values(v, kPageSlots / 4, padded_dim, to);
  return 0;
}

void int4_k_values(const std::byte* k, int64_t d, std::byte* to) {
  const auto* scales = reinterpret_cast<const bf16*>(k + d / 2 * kPageSlots);
  for (int64_t c = 0; c < d; c += 8, k += 4 * kPageSlots, to += 16 * kPageSlots) {
    for (int64_t j = 0; j < kPageSlots; j += 16) {
      const __m512i words = _mm512_loadu_si512(k + 4 * j);
      const __m512 scale = widened(scales + c / kInt4Group * kPageSlots + j);
      _mm512_storeu_si512(to + 4 * j, scaled_pair<0>(words, scale, scale));
      _mm512_storeu_si512(to + 4 * (kPageSlots + j), scaled_pair<16>(words, scale, scale));
      _mm512_storeu_si512(to + 4 * (2 * kPageSlots + j), scaled_pair<4>(words, scale, scale));
      _mm512_storeu_si512(to + 4 * (3 * kPageSlots + j), scaled_pair<20>(words, scale, scale));
    }
  }
}

uint64_t int4_v_values(const std::byte* v, int64_t padded_dim, std::byte* to) {
  const auto* scales = reinterpret_cast<const bf16*>(v + padded_dim / 2 * kPageSlots);
  uint64_t not_numbers = 0;
  for (int64_t column = 0; column < padded_dim; column += kInt4Group, scales += kPageSlots) {
    alignas(64) float scale[kPageSlots];
    for (int64_t j = 0; j < kPageSlots; j += 16) {
      const __m512 x = widened(scales + j);
      const __mmask16 is_number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
      not_numbers |= uint64_t{static_cast<uint16_t>(~is_number)} << j;
      _mm512_store_ps(scale + j, _mm512_maskz_mov_ps(is_number, x));
    }
    const int64_t end = std::min(column + kInt4Group, padded_dim);
    for (int64_t slot = 0; slot < kPageSlots; slot += 8) {
      const auto all = [&](int64_t i) { return _mm512_set1_ps(scale[slot + i]); };
      for (int64_t c = column; c < end; c += 16) {
        const __m512i words = _mm512_loadu_si512(v + slot / 8 * 4 * padded_dim + 4 * c);
        std::byte* y = to + slot / 2 * 4 * padded_dim + 4 * c;
        _mm512_storeu_si512(y, scaled_pair<0>(words, all(0), all(1)));
        _mm512_storeu_si512(y + 4 * padded_dim, scaled_pair<16>(words, all(2), all(3)));
        _mm512_storeu_si512(y + 8 * padded_dim, scaled_pair<4>(words, all(4), all(5)));
        _mm512_storeu_si512(y + 12 * padded_dim, scaled_pair<20>(words, all(6), all(7)));
      }
    }
  }
  return not_numbers;
}

// 2^x to 7.5e-8, for statistics.
inline __m512 exact_exp2(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_set1_ps(kExp2[5]);
#pragma GCC unroll 8
  for (int i = 4; i >= 0; --i) y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2[i]));
  return _mm512_scalef_ps(y, n);
}

void row_sums(const SoftmaxTile& t) {
  const __m512 scale = _mm512_set1_ps(t.scale);
  for (int i = 0; i < t.m; ++i) {
    const float* s = t.s + i * t.s_stride;
    __m512 largest = _mm512_loadu_ps(s);
    for (int j = 16; j < t.n; j += 16) largest = _mm512_max_ps(largest, _mm512_loadu_ps(s + j));
    largest = _mm512_mul_ps(largest, scale);
    float* most = t.largest + 16 * i;
    _mm512_storeu_ps(most, _mm512_max_ps(_mm512_loadu_ps(most), largest));
    if (t.total == nullptr) continue;
    float* total = t.total + 16 * i;
    __m512 sum = _mm512_loadu_ps(total);
    if (_mm512_cmp_ps_mask(largest, _mm512_set1_ps(t.top[i] + 8.0f), _CMP_GT_OQ) != 0) {
      const float top = _mm512_reduce_max_ps(largest);
      sum = _mm512_mul_ps(sum, exact_exp2(_mm512_set1_ps(t.top[i] - top)));
      t.top[i] = top;
    }
    const __m512 top = _mm512_set1_ps(t.top[i]);
    __m512 other = _mm512_setzero_ps();
    int j = 0;
    for (; j + 32 <= t.n; j += 32) {
      sum = _mm512_add_ps(sum, exact_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, top)));
      other = _mm512_add_ps(other, exact_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j + 16), scale, top)));
    }
    if (j < t.n) sum = _mm512_add_ps(sum, exact_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, top)));
    _mm512_storeu_ps(total, _mm512_add_ps(sum, other));
  }
}

template <bool kSums, bool kMost, bool kCounts>
void columns_of(const ColumnTile& t) {
  const __m512 scale = _mm512_set1_ps(t.scale), one = _mm512_set1_ps(1.0f), unseen = _mm512_set1_ps(0.5f * kUnseen);
  const auto old = [](const float* x, int j) { return x != nullptr ? _mm512_loadu_ps(x + j) : _mm512_setzero_ps(); };
  for (int j = 0; j < t.n; j += 16) {
    __m512 sum = old(t.sums, j), below = old(t.below, j), seen = old(t.seen, j);
    __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < t.m; ++i) {
      const __m512 s = _mm512_loadu_ps(t.s + i * t.s_stride + j);
      const __m512 log_a = _mm512_fmsub_ps(s, scale, _mm512_set1_ps(t.log_total[i]));
      if constexpr (kSums) {
        const __m512 weight = t.weight != nullptr ? _mm512_set1_ps(t.weight[i]) : one;
        sum = _mm512_fmadd_ps(exact_exp2(log_a), weight, sum);
      }
      if constexpr (kMost || kCounts) {
        const __mmask16 sees = _mm512_cmp_ps_mask(s, unseen, _CMP_GT_OQ);
        if constexpr (kMost) most = _mm512_mask_max_ps(most, sees, most, log_a);
        if constexpr (kCounts) {
          seen = _mm512_mask_add_ps(seen, sees, seen, one);
          const __m512 small = _mm512_set1_ps(t.log_small[i]);
          below = _mm512_mask_add_ps(below, _mm512_mask_cmp_ps_mask(sees, log_a, small, _CMP_LT_OQ), below, one);
        }
      }
    }
    if constexpr (kSums) _mm512_storeu_ps(t.sums + j, sum);
    if constexpr (kMost) {
      const __mmask16 any = _mm512_cmp_ps_mask(most, unseen, _CMP_GT_OQ);
      const __m512 before = _mm512_loadu_ps(t.most + j);
      _mm512_storeu_ps(t.most + j, _mm512_mask_max_ps(before, any, before, exact_exp2(most)));
    }
    if (kCounts && t.below != nullptr) _mm512_storeu_ps(t.below + j, below);
    if (kCounts && t.seen != nullptr) _mm512_storeu_ps(t.seen + j, seen);
  }
}

template <bool kSums, bool kMost>
void columns_counted(const ColumnTile& t) {
  if (t.below != nullptr || t.seen != nullptr) return columns_of<kSums, kMost, true>(t);
  columns_of<kSums, kMost, false>(t);
}

void columns(const ColumnTile& t) {
  if (t.most == nullptr) return t.sums != nullptr ? columns_counted<true, false>(t) : columns_counted<false, false>(t);
  t.sums != nullptr ? columns_counted<true, true>(t) : columns_counted<false, true>(t);
}

}  // namespace

void use_avx512bf16(AttentionKernels& kernels) {
  constexpr size_t kCodec = static_cast<size_t>(KvCodec::kBF16);
  constexpr size_t kInt8 = static_cast<size_t>(KvCodec::kInt8), kInt4 = static_cast<size_t>(KvCodec::kInt4);
  kernels.query_form[kCodec] = QueryForm::kBF16;
  kernels.scores[kCodec] = scores;
  kernels.softmax[kCodec] = softmax;
  kernels.values[kCodec] = values;
  kernels.softmax[kInt8] = softmax_codes;
  kernels.softmax[kInt4] = softmax_codes;
  kernels.widen = nullptr;
  kernels.code_values = {.codec = KvCodec::kBF16, .many_rows = {}, .int8_scaled = false, .k = {}, .v = {}};
  for (int codec = 0; codec < kKvCodecs; ++codec)
    kernels.code_values.many_rows[codec] = is_coded(static_cast<KvCodec>(codec));
  kernels.code_values.k[kInt8] = int8_k_values;
  kernels.code_values.v[kInt8] = int8_v_values;
  kernels.code_values.k[kInt4] = int4_k_values;
  kernels.code_values.v[kInt4] = int4_v_values;
  kernels.row_sums = row_sums;
  kernels.columns = columns;
}

}  // namespace vlcache::cpu
