// The portable kernels of attention: Highway, compiled per target. bf16 pages are widened while they are read.
#include "ops/cpu/attention/kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {
// At most 16 lanes, so that padded columns are whole vectors.
using D = F32Tag;
using V = F32Vec;
using DU = hn::RebindToUnsigned<D>;
constexpr int kN = static_cast<int>(HWY_MIN(HWY_LANES(float), kLanes));
// Vectors per row of a strip of MR rows: 6 x 4 accumulators fit 32 registers. Of 16, few rows use as many as they can:
// products with one accumulator wait for each other, and a page's lines are read in their order.
template <int MR>
constexpr int kVectors = kN >= 16  ? 4
                         : MR == 1 ? 8
                         : MR <= 3 ? 4
                                   : 2;

HWY_INLINE V load(const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE void store(V v, float* p) { hn::StoreU(v, D(), p); }
HWY_INLINE V all(float x) { return hn::Set(D(), x); }
HWY_INLINE const float* floats(const std::byte* p) { return reinterpret_cast<const float*>(p); }

// 2^x; 0 for x below the range of f32, NaN for NaN.
HWY_INLINE V exp2(V x) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto below = hn::Le(x, all(-126.0f));
  // At this magnitude an f32's last bit is 1: the sum is rounded to an integer, its low bits.
  const V integer = all(0x1.8p23f), bounded = hn::IfThenElse(below, all(-127.0f), x),
          rounded = hn::Add(bounded, integer);
  const V f = hn::Sub(bounded, hn::Sub(rounded, integer));
  V y = all(kExp2[5]);
  for (int i = 4; i >= 0; --i) y = hn::MulAdd(y, f, all(kExp2[i]));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, rounded));
  return hn::IfThenZeroElse(below, hn::BitCast(d, hn::Add(hn::BitCast(di, y), exponent)));
}

// How the right-hand operands of a codec are read. kSteps: contraction indices per line of a page (bf16 pairs: 2).
struct F32Page {
  static constexpr int kSteps = 1;
  using Line = V;
  static HWY_INLINE Line line(const std::byte* p) { return load(floats(p)); }
  template <int kStep>
  static HWY_INLINE V part(Line x) {
    return x;
  }
};
struct Bf16Page {
  static constexpr int kSteps = 2;
  using Line = hn::Vec<DU>;
  static HWY_INLINE Line line(const std::byte* p) { return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p)); }
  template <int kStep>
  static HWY_INLINE V part(Line x) {
    if constexpr (kStep == 0) return hn::BitCast(D(), hn::ShiftLeft<16>(x));
    return hn::BitCast(D(), hn::And(x, hn::Set(DU(), 0xffff0000u)));
  }
};

// Prefetches the lines of a part of the columns into L2, spread over all of its steps: a burst of them would keep the
// loads waiting that the products need.
class Prefetch {
 public:
  struct Part {
    int begin, end, all;  // columns
  };
  // Of n_lines from `from` on, null: none.
  Prefetch(const std::byte* from, int n_lines, Part part, int n_steps) : n_steps_(n_steps) {
    if (from == nullptr) return;
    const int begin = n_lines * part.begin / part.all;
    n_lines_ = n_lines * part.end / part.all - begin;
    next_ = from + 64 * begin;
  }

  HWY_INLINE void step() {
    for (due_ += n_lines_; due_ >= n_steps_; due_ -= n_steps_, next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const std::byte* next_ = nullptr;
  int n_lines_ = 0, n_steps_, due_ = 0;
};

// acc[i][j] += a[i][kStep] part kStep of line j.
template <class Page, int kStep, int MR, int NR, typename LineOf>
HWY_INLINE void add_step(V (&acc)[MR][NR], const std::byte* a, int64_t a_stride, const LineOf& line) {
  const auto row = [&](int i) HWY_ATTR { return all(floats(a + i * a_stride)[kStep]); };
  const auto column = [&](int j) HWY_ATTR { return Page::template part<kStep>(line(j)); };
  if constexpr (MR < NR) {
    V x[MR];
    for (int i = 0; i < MR; ++i) x[i] = row(i);
    for (int j = 0; j < NR; ++j) {
      const V part = column(j);
      for (int i = 0; i < MR; ++i) acc[i][j] = hn::MulAdd(x[i], part, acc[i][j]);
    }
  } else {
    V parts[NR];
    for (int j = 0; j < NR; ++j) parts[j] = column(j);
    for (int i = 0; i < MR; ++i) {
      const V x = row(i);
      for (int j = 0; j < NR; ++j) acc[i][j] = hn::MulAdd(x, parts[j], acc[i][j]);
    }
  }
}

// The same for kSteps steps, lines kN lanes apart from b on. What there is less of stays in registers: rows of a, or
// lines.
template <class Page, int kSteps, int MR, int NR>
HWY_INLINE void multiply(V (&acc)[MR][NR], const std::byte* a, int64_t a_stride, const std::byte* b) {
  const auto load_line = [&](int j) HWY_ATTR { return Page::line(b + 4 * kN * j); };
  const auto add = [&](const auto& line) HWY_ATTR {
    add_step<Page, 0>(acc, a, a_stride, line);
    if constexpr (kSteps == 2) add_step<Page, 1>(acc, a, a_stride, line);
  };
  if constexpr (MR < NR) {
    add(load_line);
  } else {
    typename Page::Line lines[NR];
    for (int j = 0; j < NR; ++j) lines[j] = load_line(j);
    add([&](int j) HWY_ATTR { return lines[j]; });
  }
}

template <class Page, int MR>
void scores_rows(const ScoreTile& t) {
  constexpr int64_t kLineBytes = 4 * kPageSlots;
  constexpr int NR = kVectors<MR>;
  for (int column = 0; column < t.n; column += NR * kN) {
    V acc[MR][NR];
    for (int i = 0; i < MR; ++i)
      for (int j = 0; j < NR; ++j) acc[i][j] = all(0.0f);
    const std::byte* k = t.k + 4 * column;
    Prefetch prefetch(t.prefetch, t.prefetch_total, {column, column + NR * kN, kPageSlots}, t.head_dim / Page::kSteps);
    for (int c = 0; c < t.head_dim; c += Page::kSteps, k += kLineBytes) {
      prefetch.step();
      multiply<Page, Page::kSteps>(acc, t.q + 4 * c, t.q_stride, k);
    }
    for (int i = 0; i < MR; ++i)
      for (int j = 0; j < NR; ++j) store(acc[i][j], t.s + i * t.s_stride + column + kN * j);
  }
}

// NR vectors of columns, starting at `column`.
template <class Page, int MR, int NR>
HWY_INLINE void values_columns(const ValueTile& t, int column) {
  V acc[MR][NR];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j) acc[i][j] = load(t.o + i * t.o_stride + column + kN * j);
  const std::byte* p = t.p;
  for (int begin = 0; begin < t.n; begin += kPageSlots) {
    const std::byte* v = t.v[begin / kPageSlots] + 4 * column;
    const int n = std::min(t.n - begin, kPageSlots);
    Prefetch prefetch(t.prefetch != nullptr ? t.prefetch[begin / kPageSlots] : nullptr, t.prefetch_total,
                      {column, column + NR * kN, t.padded_dim}, n / Page::kSteps);
    int s = 0;
    for (; s + Page::kSteps <= n; s += Page::kSteps, v += int64_t{4} * t.padded_dim, p += 4 * Page::kSteps) {
      prefetch.step();
      multiply<Page, Page::kSteps>(acc, p, t.p_stride, v);
    }
    if (s < n) multiply<Page, 1>(acc, p, t.p_stride, v);  // the next row may be NaN
  }
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j) store(acc[i][j], t.o + i * t.o_stride + column + kN * j);
}

// Columns from `column` on, whole pairs of vectors: NR vectors at once, and what is left in halves.
template <class Page, int MR, int NR>
HWY_INLINE void values_of_pairs(const ValueTile& t, int column) {
  for (; column + NR * kN <= t.padded_dim; column += NR * kN) values_columns<Page, MR, NR>(t, column);
  if constexpr (NR > 2) {
    if (column < t.padded_dim) values_of_pairs<Page, MR, NR / 2>(t, column);
  }
}

// Any number of vectors.
template <class Page, int MR>
HWY_INLINE void values_of_vectors(const ValueTile& t) {
  constexpr int kMost = kVectors<MR>;
  for (int column = 0, left = t.padded_dim / kN; left > 0;) {
    // Five vectors at once (25 accumulators) rather than 3 + 2, if the strip is short enough.
    if constexpr (MR <= 5) {
      if (left == 5) return values_columns<Page, MR, 5>(t, column);
    }
    const int n = left == kMost + 1 || left == kMost + 2 ? (left + 1) / 2 : std::min(left, kMost);
    switch (n) {
      case 1:
        values_columns<Page, MR, 1>(t, column);
        break;
      case 2:
        values_columns<Page, MR, 2>(t, column);
        break;
      case 3:
        values_columns<Page, MR, 3>(t, column);
        break;
      default:
        values_columns<Page, MR, kMost>(t, column);
        break;
    }
    column += n * kN;
    left -= n;
  }
}

template <class Page, int MR>
void values_rows(const ValueTile& t) {
  if constexpr (kLanes % (2 * kN) == 0) {
    values_of_pairs<Page, MR, kVectors<MR>>(t, 0);
  } else {
    values_of_vectors<Page, MR>(t);
  }
}

template <class Page>
void scores(const ScoreTile& t) {
  switch (t.m) {
    case 1:
      return scores_rows<Page, 1>(t);
    case 2:
      return scores_rows<Page, 2>(t);
    case 3:
      return scores_rows<Page, 3>(t);
    case 4:
      return scores_rows<Page, 4>(t);
    case 5:
      return scores_rows<Page, 5>(t);
    default:
      return scores_rows<Page, 6>(t);
  }
}

template <class Page>
void values(const ValueTile& t) {
  switch (t.m) {
    case 1:
      return values_rows<Page, 1>(t);
    case 2:
      return values_rows<Page, 2>(t);
    case 3:
      return values_rows<Page, 3>(t);
    case 4:
      return values_rows<Page, 4>(t);
    case 5:
      return values_rows<Page, 5>(t);
    default:
      return values_rows<Page, 6>(t);
  }
}

void scores_f32(const ScoreTile& t) { scores<F32Page>(t); }
void scores_bf16(const ScoreTile& t) { scores<Bf16Page>(t); }
void values_f32(const ValueTile& t) { values<F32Page>(t); }
void values_bf16(const ValueTile& t) { values<Bf16Page>(t); }

void widen(const std::byte* from, int64_t n, int64_t width, std::byte* to) {
  float* y = reinterpret_cast<float*>(to);
  for (int64_t line = 0; line < n; ++line, y += 2 * width) {
    for (int64_t j = 0; j < width; j += kN, from += 4 * kN) {
      const Bf16Page::Line pairs = Bf16Page::line(from);
      store(Bf16Page::part<0>(pairs), y + j);
      store(Bf16Page::part<1>(pairs), y + width + j);
    }
  }
}

// Largest of scale s over a row, lanes apart.
HWY_INLINE V row_maxima(const float* s, int n, float scale) {
  V largest = load(s);
  for (int j = kN; j < n; j += kN) largest = hn::Max(largest, load(s + j));
  return hn::Mul(largest, all(scale));
}

HWY_INLINE void scale_by(float* x, int n, float factor) {
  for (int c = 0; c < n; c += kN) store(hn::Mul(load(x + c), all(factor)), x + c);
}

// Raises *top if a score is more than 2^8 above it; the sums so far must be multiplied by the result.
HWY_INLINE float raise_top(V largest, float* top) {
  const D d;
  if (hn::AllTrue(d, hn::Le(largest, all(*top + 8.0f)))) return 1.0f;
  const float raised = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float factor = hn::GetLane(exp2(all(*top - raised)));
  *top = raised;
  return factor;
}

// A row's total, kLanes partial sums, in registers.
class Totals {
 public:
  static constexpr int kCount = kLanes / kN;
  explicit Totals(const float* total) {
    for (int k = 0; k < kCount; ++k) sums_[k] = load(total + k * kN);
  }
  HWY_INLINE void add(int k, V x) { sums_[k] = hn::Add(sums_[k], x); }
  void write(float* total) const {
    for (int k = 0; k < kCount; ++k) store(sums_[k], total + k * kN);
  }

 private:
  V sums_[kCount];
};

template <bool kWeighted>
void softmax_rows(const SoftmaxTile& t) {
  const V scale = all(t.scale);
  for (int i = 0; i < t.m; ++i) {
    const float* s = t.s + i * t.s_stride;
    float* total = t.total + kLanes * i;
    const float factor = raise_top(row_maxima(s, t.n, t.scale), &t.top[i]);
    if (factor != 1.0f) {
      scale_by(total, kLanes, factor);
      scale_by(t.o + i * t.o_stride, t.padded_dim, factor);
    }
    const V top = all(t.top[i]);
    float* p = reinterpret_cast<float*>(t.p + i * t.p_stride);
    Totals totals(total);
    for (int j = 0; j < t.n; j += kLanes) {
      for (int k = 0; k < Totals::kCount; ++k) {
        const V e = exp2(hn::MulSub(load(s + j + k * kN), scale, top));
        totals.add(k, e);
        V weighted = e;
        // Unseen slots may have any weight.
        if constexpr (kWeighted) {
          weighted = hn::IfThenZeroElse(hn::Eq(e, all(0.0f)), hn::Mul(e, load(t.weight + j + k * kN)));
        }
        store(weighted, p + j + k * kN);
      }
    }
    totals.write(total);
  }
}

void softmax_f32(const SoftmaxTile& t) { t.weight != nullptr ? softmax_rows<true>(t) : softmax_rows<false>(t); }

void row_sums(const SoftmaxTile& t) {
  const V scale = all(t.scale);
  for (int i = 0; i < t.m; ++i) {
    const float* s = t.s + i * t.s_stride;
    float* largest = t.largest + kLanes * i;
    const V maxima = row_maxima(s, t.n, t.scale);
    store(hn::Max(load(largest), maxima), largest);
    if (t.total == nullptr) continue;
    float* total = t.total + kLanes * i;
    const float factor = raise_top(maxima, &t.top[i]);
    if (factor != 1.0f) scale_by(total, kLanes, factor);
    const V top = all(t.top[i]);
    Totals totals(total);
    for (int j = 0; j < t.n; j += kLanes) {
      for (int k = 0; k < Totals::kCount; ++k) {
        totals.add(k, exp2(hn::MulSub(load(s + j + k * kN), scale, top)));
      }
    }
    totals.write(total);
  }
}

void columns(const ColumnTile& t) {
  const V scale = all(t.scale), one = all(1.0f), nothing = all(-std::numeric_limits<float>::infinity());
  const auto is_seen = [](V s) { return hn::Gt(s, all(0.5f * kUnseen)); };
  for (int j = 0; j < t.n; j += kN) {
    const auto score = [&](int i) { return load(t.s + i * t.s_stride + j); };
    const auto log_a = [&](int i) { return hn::MulSub(score(i), scale, all(t.log_total[i])); };
    if (t.sums != nullptr) {
      V sum = load(t.sums + j);
      for (int i = 0; i < t.m; ++i) {
        sum = hn::MulAdd(exp2(log_a(i)), all(t.weight != nullptr ? t.weight[i] : 1.0f), sum);
      }
      store(sum, t.sums + j);
    }
    if (t.most != nullptr) {
      V most = nothing;
      for (int i = 0; i < t.m; ++i) most = hn::Max(most, hn::IfThenElse(is_seen(score(i)), log_a(i), nothing));
      const V before = load(t.most + j);
      store(hn::IfThenElse(hn::Gt(most, nothing), hn::Max(before, exp2(most)), before), t.most + j);
    }
    if (t.below != nullptr) {
      V below = load(t.below + j);
      for (int i = 0; i < t.m; ++i) {
        const auto small = hn::And(is_seen(score(i)), hn::Lt(log_a(i), all(t.log_small[i])));
        below = hn::Add(below, hn::IfThenElseZero(small, one));
      }
      store(below, t.below + j);
    }
    if (t.seen != nullptr) {
      V seen = load(t.seen + j);
      for (int i = 0; i < t.m; ++i) seen = hn::Add(seen, hn::IfThenElseZero(is_seen(score(i)), one));
      store(seen, t.seen + j);
    }
  }
}

bool scan_bias(const float* bias, int n, uint64_t* hidden) {
  const D d;
  const V nothing = all(-std::numeric_limits<float>::infinity());
  uint64_t bits = 0;
  bool any = false;
  const auto scan = [&](V b, int j) {
    const auto is_hidden = hn::Eq(b, nothing);
    if (hn::AllTrue(d, hn::Eq(b, all(0.0f)))) return;
    uint8_t lanes[8] = {};
    hn::StoreMaskBits(d, is_hidden, lanes);
    uint64_t mask = 0;
    std::memcpy(&mask, lanes, 2);
    bits |= mask << j;
    any = any || !hn::AllTrue(d, hn::Or(is_hidden, hn::Eq(b, all(0.0f))));
  };
  int j = 0;
  for (; j + kN <= n; j += kN) scan(load(bias + j), j);
  if (j < n) {
    float rest[kLanes] = {};
    std::copy(bias + j, bias + n, rest);
    scan(load(rest), j);
  }
  *hidden = bits;
  return any;
}

void write_logits(const float* s, float factor, int n, float* y) {
  const V nothing = all(-std::numeric_limits<float>::infinity());
  for (int j = 0; j < n; j += kN) {
    const V x = load(s + j), logit = hn::IfThenElse(hn::Gt(x, all(0.5f * kUnseen)), hn::Mul(x, all(factor)), nothing);
    store_f32(logit, y + j, static_cast<size_t>(n - j));
  }
}

void scale_bias(float* s, float scale, const float* bias, int n) {
  for (int j = 0; j < n; j += kN) {
    store(hn::Max(hn::MulAdd(load(s + j), all(scale), load(bias + j)), all(kLowest)), s + j);
  }
}

void mask(float* s, int m, uint64_t seen, int n) {
  const D d;
  for (int j = 0; j < n; j += kN) {
    constexpr uint64_t kAll = (uint64_t{1} << kN) - 1;
    const uint64_t lanes = seen >> j & kAll;
    if (lanes == kAll) continue;
    uint8_t bits[8] = {};  // as many as LoadMaskBits may read
    std::memcpy(bits, &lanes, 2);
    const auto is_seen = hn::LoadMaskBits(d, bits);
    for (int i = 0; i < m; ++i) {
      float* at = s + i * kBlockColumns + j;
      store(hn::IfThenElse(is_seen, load(at), all(kUnseen)), at);
    }
  }
}

template <typename T>
void write_row(const float* o, float factor, int64_t n, T* y) {
  for (int64_t c = 0; c < n; c += kN) store_f32(hn::Mul(load(o + c), all(factor)), y + c, static_cast<size_t>(n - c));
}
void write_f32(const float* o, float factor, int64_t n, float* y) { write_row(o, factor, n, y); }
void write_bf16(const float* o, float factor, int64_t n, bf16* y) { write_row(o, factor, n, y); }

void fill(AttentionKernels* kernels) {
  constexpr size_t kF32 = static_cast<size_t>(KvCodec::kF32), kBF16 = static_cast<size_t>(KvCodec::kBF16);
  kernels->query_form[kF32] = kernels->query_form[kBF16] = QueryForm::kF32;
  kernels->scores[kF32] = scores_f32;
  kernels->scores[kBF16] = scores_bf16;
  kernels->softmax[kF32] = kernels->softmax[kBF16] = softmax_f32;
  kernels->values[kF32] = values_f32;
  kernels->values[kBF16] = values_bf16;
  kernels->widen = widen;
  kernels->scale_bias = scale_bias;
  kernels->mask = mask;
  kernels->scan_bias = scan_bias;
  kernels->write_logits = write_logits;
  kernels->write_f32 = write_f32;
  kernels->write_bf16 = write_bf16;
  kernels->row_sums = row_sums;
  kernels->columns = columns;
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vlcache::cpu {
HWY_EXPORT(fill);

AttentionKernels attention_kernels(Isa isa, bool byte_dots) {
  AttentionKernels kernels{};
  VLCACHE_SIMD(isa, fill)(&kernels);
  std::fill(std::begin(kernels.strip_rows), std::end(kernels.strip_rows), kStripRows);
  use_coded(kernels, isa, byte_dots);
  if (!byte_dots) use_code_values(kernels, isa);
#if HWY_ARCH_X86
  if (isa >= Isa::kAvx512Bf16) use_avx512bf16(kernels);
  if (isa >= Isa::kAmxBf16) use_amx(kernels);
#endif
  return kernels;
}

}  // namespace vlcache::cpu
#endif  // HWY_ONCE
