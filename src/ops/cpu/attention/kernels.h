// Declares the inner loops of attention, one table per instruction set. A call works on a few query rows ("strip")
// against one page or a few pages, all in L1: everything above it (tiles, masks, tasks) is the same for all instruction
// sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/contracts/kv.h"
#include "base/dtype.h"
#include "base/numeric/kv_codec.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

inline constexpr int kCodedStripRows = 4;  // coded pages have two sums for each accumulator
inline constexpr int kByteTileRows = 8;    // the same with AMX: a tile holds both halves
inline constexpr int kStripRows = 6;       // 6 rows x 4 vectors of 16 slots: 24 accumulators of 32 registers
inline constexpr int kMostStripRows = 32;  // two tiles of AMX
inline constexpr int kBlockPages = 4;      // pages between two steps of softmax, at most
inline constexpr int kBlockColumns = kBlockPages * kPageSlots;
inline constexpr int kLanes = 16;         // columns come in multiples of this, whatever the vector length
inline constexpr float kUnseen = -1e30f;  // score of a slot the query does not see; its weight is exactly 0
inline constexpr float kLowest = -1e29f;  // least score of a slot it does see (a bias may be -inf)
inline constexpr float kNoTop = -1e20f;   // `top` of a row that has seen nothing: below every score, far above kLowest
inline constexpr float kLog2e = 1.44269504088896341f;
// Minimax polynomial of 2^f on [-1/2, 1/2], lowest degree first; relative error 7.5e-8 before rounding.
inline constexpr float kExp2[6] = {1.0000001f, 0.69314694f, 0.24022120f, 0.055507131f, 0.0096755410f, 0.0013276472f};

// How rows of q are packed for K of a codec. The last ones: for codes of 8 or 4 bits, whose rows are rotated
// (kv_codec.h), H q / block, as CodedQuery, or as values for codes that became values (CodeValues).
enum class QueryForm : uint8_t {
  kBF16,
  kF32,
  kCodes8,
  kCodes4,
  kRotatedBF16Of8,
  kRotatedBF16Of4,
  kRotatedF32Of8,
  kRotatedF32Of4
};
inline constexpr int kQueryForms = 8;
constexpr bool is_rotated(QueryForm form) { return form >= QueryForm::kCodes8; }
constexpr bool is_rotated_values(QueryForm form) { return form >= QueryForm::kRotatedBF16Of8; }
constexpr bool is_bf16(QueryForm form) {
  return form == QueryForm::kBF16 || form == QueryForm::kRotatedBF16Of8 || form == QueryForm::kRotatedBF16Of4;
}
// The codec that rotates it so.
constexpr KvCodec rotation_of(QueryForm form) {
  const bool of_8 =
      form == QueryForm::kCodes8 || form == QueryForm::kRotatedBF16Of8 || form == QueryForm::kRotatedF32Of8;
  return of_8 ? KvCodec::kInt8 : KvCodec::kInt4;
}

// A row of q as whole numbers v, |v| <= kMostQuery: 15 bits, so q loses less than bf16's own rounding, and its products
// with codes are exact in 32-bit sums (head_dim 1024 at most). Products of bytes read v as 128 high + low: [plane]
// signed bytes of high, [plane] of low. Others read words, in each four in the order 0, 2, 1, 3. A CodedQuery ends the
// row.
struct CodedQuery {
  float scale;  // what v is multiplied by
  // Where the sums of each group of dimensions start: products of bytes read codes as c + 128, without a sign.
  int32_t start[1024 / kInt4Group];
  int32_t unused[15] = {};
};
inline constexpr int kMostQuery = 127 * 128;
constexpr int64_t query_plane(int64_t head_dim) {
  return (head_dim + 63) / 64 * 64 + static_cast<int64_t>(sizeof(CodedQuery));
}
constexpr int64_t query_bytes(QueryForm form, int64_t head_dim) {
  if (form == QueryForm::kCodes8 || form == QueryForm::kCodes4) return 2 * query_plane(head_dim);
  return head_dim * (is_bf16(form) ? 2 : 4);
}
// Weights times a page's scales as whole numbers: two halves of 7 bits, so that sums over a block fit 32 bits.
inline constexpr int kMostWeight = 127 * 128 + 127;

// s[i, j] = q_i . k_j for i < m and j < n rounded up to 16.
struct ScoreTile {
  const std::byte* q;  // [m] rows of the codec's QueryForm, q_stride bytes apart
  int64_t q_stride;
  int m;               // 1 .. AttentionKernels::strip_rows
  int n;               // 1 .. 64
  const std::byte* k;  // K of a page
  int head_dim;
  float* s;  // s_stride floats between rows
  int64_t s_stride;
  const std::byte* prefetch;  // where the bytes needed next lie; null: no prefetch
  int prefetch_lines;         // cache lines to prefetch per pair of dimensions
  int prefetch_total;         // cache lines in all
};

// o_i += sum_j p[i, j] v_j over j < n slots of consecutive pages.
struct ValueTile {
  // [m] rows of bf16 for QueryForm::kBF16, else f32, p_stride bytes apart; for int8 times its scales
  const std::byte* p;
  int64_t p_stride;
  int m;
  int n;
  const std::byte* const* v;  // V of page j / 64
  int padded_dim;
  float* o;  // o_stride floats between rows
  int64_t o_stride;
  const std::byte* const* prefetch;  // per page, where the bytes needed next lie; null: no prefetch
  int prefetch_lines;                // cache lines to prefetch per pair of slots
  int prefetch_total;                // cache lines of a page in all
};

// One step of online softmax in base 2 over n columns (a multiple of 16) of m rows: p = 2^(scale s - top), total += p.
// `top` follows the largest score lazily, only when that is more than 2^8 above it; then total and o are scaled down.
// Statistics need only the sums (row_sums): no p and o, but the exact maxima; null total: the maxima alone.
struct SoftmaxTile {
  const float* s;
  int64_t s_stride;
  int m;
  int n;
  float scale;
  float* top;    // [m]
  float* total;  // [m, 16]: partial sums by column mod 16
  std::byte* p;
  int64_t p_stride;
  float* o;
  int64_t o_stride;
  int padded_dim;
  const float* weight;  // [n] factors of p, but not of the total; null: 1
  float* largest;       // [m, 16], row_sums only
};

// Statistics of the columns of A_ij = 2^(scale s_ij - log_total_i) over m rows, each joined with the values already
// there; null: not requested. n is a multiple of 16.
struct ColumnTile {
  const float* s;
  int64_t s_stride;
  int m;
  int n;
  float scale;
  const float* log_total;  // [m] log2 of the row's sum of exponentials
  const float* log_small;  // [m] log2 of the limit below which A counts as small
  const float* weight;     // [m] factors in `sums`; null: 1
  float* sums;             // [n] of weight A
  float* most;             // [n] largest A of rows with s above kUnseen
  float* below;            // [n] rows with A < small
  float* seen;             // [n] rows with s above kUnseen
};

// Codes as values that the kernels of `codec` (kBF16 or kF32) multiply, in the layout of its pages: made once for all
// strips of a tile of many rows.
struct CodeValues {
  KvCodec codec;
  bool many_rows[kKvCodecs];  // by a page's codec: whether many rows multiply values, not codes
  bool int8_scaled;           // values of int8 are times their scales; else scores and weights are to be multiplied
  // By the codec of the half. K of a page; V of a page.
  void (*k[kKvCodecs])(const std::byte* k, int64_t d, std::byte* to);
  // Bits of the result: slots with a scale that is no finite number. Their values are 0.
  uint64_t (*v[kKvCodecs])(const std::byte* v, int64_t padded_dim, std::byte* to);
};

struct AttentionKernels {
  int strip_rows[kKvCodecs];  // by a page's codec; at most, for scores and values
  // Of K's codec. Null scores: pages are decoded to f32.
  QueryForm query_form[kKvCodecs];
  void (*scores[kKvCodecs])(const ScoreTile&);
  // Of V's codec.
  void (*softmax[kKvCodecs])(const SoftmaxTile&);
  void (*values[kKvCodecs])(const ValueTile&);
  // Pairs of bf16 side by side become two lines of f32: from [n, width, 2] to [n, 2, width], width a multiple of 16.
  // Null: no kernel reads bf16 pages slower than f32 pages.
  void (*widen)(const std::byte* from, int64_t n, int64_t width, std::byte* to);
  CodeValues code_values;
  // Of K's codec: a row x [d] to QueryForm::kCodes8 or kCodes4; x is 0 up to the next multiple of 64.
  void (*code_query[kKvCodecs])(const float* x, int64_t d, std::byte* y);
  // x [n] = factor H x, block by block (rotate_head).
  void (*rotate)(float* x, int64_t n, int64_t block, float factor);
  // s[i, j] *= scale[j] for m rows.
  void (*scale_columns)(float* s, int64_t s_stride, int m, const float* scale, int n);
  // Bit j of *hidden: bias[j] is -inf, n <= 64. Returns whether any other is not 0.
  bool (*scan_bias)(const float* bias, int n, uint64_t* hidden);
  // s[j] = max(s[j] * scale + bias[j], kLowest), n a multiple of 16.
  void (*scale_bias)(float* s, float scale, const float* bias, int n);
  // y[j] = s[j] * factor, or -inf where s[j] is kUnseen.
  void (*write_logits)(const float* s, float factor, int n, float* y);
  // y[c] = o[c] * factor, rounded to the type of y.
  void (*write_f32)(const float* o, float factor, int64_t n, float* y);
  void (*write_bf16)(const float* o, float factor, int64_t n, bf16* y);
  // s[i, j] = kUnseen where bit j of `seen` is 0, in m rows of a block's scores; n <= 64, a multiple of 16.
  void (*mask)(float* s, int m, uint64_t seen, int n);
  void (*row_sums)(const SoftmaxTile&);
  void (*columns)(const ColumnTile&);
};

// The fastest kernels that `isa` allows; byte_dots: with products of bytes, which the CPU must have.
AttentionKernels attention_kernels(Isa isa, bool byte_dots);

// sums[i, j] = sum of a[i, c] b[c / 4, j, c % 4], bytes with signs, over the 64 c of each part of a and b but the last,
// which has `last`, a multiple of 4: for products of tiles of bytes (AMX).
struct ByteTiles {
  const std::byte* a;  // [n_rows, 64 n_parts], a_stride bytes apart
  int64_t a_stride;
  int n_rows;                 // 16 at most
  const std::byte* const* b;  // [n_parts] of [16, n, 4], b_stride bytes apart
  int64_t b_stride;
  int n_parts;
  int last;
  int n;                             // 16, 32, 48 or 64
  int32_t* sums;                     // [n_rows, 64]
  const std::byte* const* prefetch;  // [n_parts]; null: no prefetch
  int prefetch_lines;                // cache lines of a part
};
void multiply_bytes_amx(const ByteTiles& t);

// Adds the kernels for coded pages (kernels_coded.cc).
void use_coded(AttentionKernels& kernels, Isa isa, bool byte_dots);
// Adds f32 values of codes (kernels_code_values.cc).
void use_code_values(AttentionKernels& kernels, Isa isa);

// Replaces the kernels for kBF16 pages by those of kernels_avx512bf16.cc; only where the CPU has the bf16 dot product.
void use_avx512bf16(AttentionKernels& kernels);
// Adds the kernels of kernels_amx.cc; only where the CPU has AMX.
void use_amx(AttentionKernels& kernels);

}  // namespace vlcache::cpu
