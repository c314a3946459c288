// Defines the cpu backend's layout of a page of K and V, and the ops that write, read and move slots.
//
// A page holds 64 slots of one kv head: first K, then V, each laid out as the right-hand operand of its product, so
// that prefill and decode read the same bytes without unpacking. `dp` is head_dim rounded up to 16; the padding columns
// of V are zero.
//   kBF16  K [d/2][64][2]: pairs of neighbouring dimensions, slots side by side     (q k^T contracts dimensions)
//          V [32][dp][2]:  pairs of neighbouring slots, dimensions side by side     (p v contracts slots)
//   kF32   K [d][64], V [64][dp]
// Coded pages hold codes of rotated rows (kv_codec.h), laid out for products of bytes, and scales in bf16:
//   kInt8  K [d/4][64][4] of four neighbouring dimensions, K's scales [64],
//          V [16][dp][4] of four neighbouring slots, V's scales [64]
//   kInt4  K [d/8][64][4]: the low half of a byte has the first four dimensions, the high half the next four; V
//          [8][dp][4]: four slots and the next four in the same way; scales of each [d/32, rounded up][64]
//   kK8V4  K as kInt8 has it, V as kInt4
// Slots at and beyond a head's n_slots are undefined and may be NaN (pages are recycled): kernels never read them into
// a result.
#pragma once

#include <span>

#include "base/numeric/kv_codec.h"
#include "ops/backend.h"

namespace vlcache::cpu {

constexpr int64_t padded_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
// Of one value or code, and of the scales of one slot's K or V; of a half's codec (k_codec, v_codec).
constexpr int64_t codec_bits(KvCodec codec) {
  return codec == KvCodec::kF32 ? 32 : codec == KvCodec::kBF16 ? 16 : codec == KvCodec::kInt8 ? 8 : 4;
}
constexpr int64_t kv_scale_bytes(KvCodec codec, int64_t head_dim) {
  if (!is_coded(codec)) return 0;
  return 2 * (codec == KvCodec::kInt8 ? 1 : (head_dim + kInt4Group - 1) / kInt4Group);
}
constexpr int64_t kv_half_bytes(KvCodec codec, int64_t head_dim, int64_t width) {
  return kPageSlots * (width * codec_bits(codec) / 8 + kv_scale_bytes(codec, head_dim));
}
// Where V begins. head_dim: even, where K is int8 a multiple of 4, where it is int4 one of 8.
constexpr int64_t kv_k_bytes(KvCodec codec, int64_t head_dim) {
  return kv_half_bytes(k_codec(codec), head_dim, head_dim);
}
// Always a multiple of 64.
constexpr int64_t kv_page_bytes(KvCodec codec, int64_t head_dim) {
  return kv_k_bytes(codec, head_dim) + kv_half_bytes(v_codec(codec), head_dim, padded_dim(head_dim));
}

// As in Backend.
void kv_write(const Tensor& k, const Tensor& v, const KvView& kv);
void kv_read(const KvView& kv, int head, std::span<const int32_t> slots, const Tensor& k, const Tensor& v);
void kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v);

// Slots from[i] become slots to[i].
struct SlotMap {
  std::span<const int32_t> from;
  std::span<const int32_t> to;
};
void kv_move(const KvView& src, const KvView& dst, int head, const SlotMap& slots);

// One page, and rows of one head to put into it: row i of K is the head_dim elements of `dtype` at k + i * k_stride
// bytes. A null k or v leaves that part as it is.
struct PageRef {
  std::byte* data;
  KvCodec codec;
  int64_t head_dim;
};
struct HeadRows {
  const std::byte* k;
  const std::byte* v;
  int64_t k_stride;
  int64_t v_stride;
  DType dtype;
};
// Rows [0, n) become slots [begin, begin + n) of the page.
void write_slots(const PageRef& page, const HeadRows& rows, int begin, int n);

}  // namespace vlcache::cpu
