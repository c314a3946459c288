// Makes what kernels multiply: queries in the forms that pages need, and pages in other forms than they are stored in.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/numeric/kv_codec.h"
#include "ops/cpu/attention/coded_pages.h"
#include "ops/cpu/attention/kv_pages.h"
#include "ops/cpu/attention/tile.h"

namespace vlcache::cpu {
namespace {

template <typename To, typename From>
void convert_row(const From* x, int64_t n, std::byte* y) {
  To* to = reinterpret_cast<To*>(y);
  for (int64_t c = 0; c < n; ++c) to[c] = from_float<To>(to_float(x[c]));
}

// One row of q, of its dtype, to a form.
void pack_row(const Tensor& q, const std::byte* x, const AttentionKernels& kernels, QueryForm form, std::byte* y) {
  const int64_t d = q.dim(2);
  const DType dtype = is_bf16(form) ? DType::kBF16 : DType::kF32;
  if (is_rotated(form)) {
    alignas(64) float row[kMaxHeadDim];
    std::fill(row + d, row + (d + 63) / 64 * 64, 0.0f);
    pack_row(q, x, kernels, QueryForm::kF32, reinterpret_cast<std::byte*>(row));
    rotate_row(kernels, {rotation_of(form), /*divides=*/true}, d, row);
    if (is_rotated_values(form)) {
      return dtype == DType::kBF16 ? convert_row<bf16>(row, d, y) : convert_row<float>(row, d, y);
    }
    return kernels.code_query[static_cast<size_t>(rotation_of(form))](row, d, y);
  }
  if (q.dtype == dtype) {
    std::memcpy(y, x, static_cast<size_t>(d * dtype_bytes(dtype)));
  } else if (dtype == DType::kBF16) {
    convert_row<bf16>(reinterpret_cast<const float*>(x), d, y);
  } else {
    convert_row<float>(reinterpret_cast<const bf16*>(x), d, y);
  }
}

void pack_tile(const Tile& tile, const AttentionKernels& kernels, const Tensor& q, QueryForm form, std::byte* y) {
  const int64_t row_bytes = query_bytes(form, q.dim(2)), x_bytes = dtype_bytes(q.dtype);
  for (int64_t t = 0; t < tile.n_tokens; ++t) {
    const std::byte* x = q.data + (tile.q_row(t) * q.stride + tile.query_head * q.dim(2)) * x_bytes;
    for (int g = 0; g < tile.group; ++g, y += row_bytes) pack_row(q, x + g * q.dim(2) * x_bytes, kernels, form, y);
  }
}

// All slots of a coded page, as decode_head gives them, to a page of f32.
void decode_page(const PageRef& page, std::byte* to) {
  const int64_t d = page.head_dim;
  alignas(64) float rows[2][kPageSlots * kMaxHeadDim];
  int32_t slots[kPageSlots];
  std::iota(slots, slots + kPageSlots, 0);
  const Tensor k(rows[0], DType::kF32, {kPageSlots, d}), v(rows[1], DType::kF32, {kPageSlots, d});
  read_coded(page, slots, k, v);
  write_slots({to, KvCodec::kF32, d}, {k.data, v.data, 4 * d, 4 * d, DType::kF32}, 0, kPageSlots);
}

// Scales of an int8 page's slots, after the codes of K or V.
void read_scales(const std::byte* from, float* to) {
  const auto* scales = reinterpret_cast<const bf16*>(from);
  for (int j = 0; j < kPageSlots; ++j) to[j] = to_float(scales[j]);
}

// The scores of these slots become NaN, as their V is: 0 times NaN would change rows that do not see them.
void spoil_slots(uint64_t slots, int64_t d, std::byte* k) {
  constexpr uint32_t kNaN = 0x7fc00000;  // as f32, and as the second of a pair of bf16
  for (; slots != 0; slots &= slots - 1) {
    for (int64_t c = 0; c < d / 2; ++c) {
      std::memcpy(k + 4 * (c * kPageSlots + std::countr_zero(slots)), &kNaN, sizeof kNaN);
    }
  }
}

// Page i of a coded block as values, in `to`.
void make_values(const CodeValues& make, int64_t d, bool values, Block& block, int i, std::byte* to) {
  std::byte *k = to, *v = to + kv_k_bytes(make.codec, d);
  make.k[static_cast<size_t>(k_codec(block.codec))](block.k[i], d, k);
  block.k[i] = k;
  if (!values) return;
  spoil_slots(make.v[static_cast<size_t>(v_codec(block.codec))](block.v[i], padded_dim(d), v), d, k);
  block.v[i] = v;
}

}  // namespace

void rotate_row(const AttentionKernels& kernels, const Rotation& rotation, int64_t d, float* x) {
  const int64_t whole = rotation.codec == KvCodec::kInt8 ? d : d / kInt4Group * kInt4Group, rest = d - whole;
  const auto rotate = [&](float* part, int64_t n, int64_t block) {
    if (n > 0) kernels.rotate(part, n, block, rotation.divides ? 1.0f / static_cast<float>(block) : 1.0f);
  };
  rotate(x, whole, rotation.codec == KvCodec::kInt8 ? rotation_block(d) : kInt4Group);
  rotate(x + whole, rest, rotation_block(rest));
}

QueryForm query_form(const Tile& tile, const AttentionKernels& kernels, KvCodec codec) {
  const auto index = static_cast<size_t>(k_codec(codec));
  if (kernels.scores[index] == nullptr) return QueryForm::kF32;
  const CodeValues& values = kernels.code_values;
  const bool many = values.many_rows[static_cast<size_t>(codec)] && tile.n_rows() > kFewRows;
  if (!many) return kernels.query_form[index];
  const bool is_int8 = k_codec(codec) == KvCodec::kInt8;
  if (values.codec == KvCodec::kF32) return is_int8 ? QueryForm::kRotatedF32Of8 : QueryForm::kRotatedF32Of4;
  if (tile.counts) return kernels.query_form[index];
  return is_int8 ? QueryForm::kRotatedBF16Of8 : QueryForm::kRotatedBF16Of4;
}

void pack_queries(const Tile& tile, const AttentionKernels& kernels, const Tensor& q, const TileScratch& scratch) {
  const KvView& kv = *tile.kv;
  bool needed[kQueryForms] = {};
  for (int i = 0; i < kKvCodecs; ++i) {
    const auto codec = static_cast<KvCodec>(i);
    const bool used = kv.codecs == nullptr ? kv.codec == codec : kv.pools[i].base != nullptr;
    if (used) needed[static_cast<size_t>(query_form(tile, kernels, codec))] = true;
  }
  for (size_t form = 0; form < kQueryForms; ++form) {
    if (!needed[form]) continue;
    pack_tile(tile, kernels, q, static_cast<QueryForm>(form), scratch.q[form]);
    if (tile.args->q_sinks == nullptr) continue;
    pack_tile(tile, kernels, *tile.args->q_sinks, static_cast<QueryForm>(form), scratch.q_sinks[form]);
  }
}

void load_block(const Walk& walk, const TileScratch& scratch, bool values, Block& block) {
  const AttentionKernels& kernels = walk.kernels();
  const int64_t d = walk.tile().kv->head_dim, dp = padded_dim(d);
  const bool many = walk.tile().n_rows() > kFewRows;
  std::byte* to = scratch.wide;
  const CodeValues& code_values = kernels.code_values;
  const bool as_values = is_rotated_values(block.query), scaled = as_values && code_values.int8_scaled;
  if (block.rotation == KvCodec::kInt8 && values && !scaled) {
    const int64_t codes = dp * kPageSlots;
    for (int i = 0; i < block.n_pages; ++i) read_scales(block.v[i] + codes, scratch.v_scale + i * kPageSlots);
    block.v_scale = scratch.v_scale;
  }
  if (is_coded(block.codec) && block.query == QueryForm::kF32) {
    for (int i = 0; i < block.n_pages; ++i, to += kv_page_bytes(KvCodec::kF32, d)) {
      decode_page({const_cast<std::byte*>(block.k[i]), block.codec, d}, to);
      block.k[i] = to;
      block.v[i] = to + kv_k_bytes(KvCodec::kF32, d);
    }
    block.codec = KvCodec::kF32;
  } else if (as_values) {
    const bool scales = k_codec(block.codec) == KvCodec::kInt8 && !scaled;
    for (int i = 0; i < block.n_pages; ++i, to += kv_page_bytes(code_values.codec, d)) {
      if (scales) read_scales(block.k[i] + d * kPageSlots, scratch.k_scale + i * kPageSlots);
      make_values(code_values, d, values, block, i, to);
    }
    if (scales) block.k_scale = scratch.k_scale;
    block.codec = code_values.codec;
  } else if (block.codec == KvCodec::kBF16 && kernels.widen != nullptr && many) {
    for (int i = 0; i < block.n_pages; ++i, to += kv_page_bytes(KvCodec::kF32, d)) {
      std::byte* v = to + kv_k_bytes(KvCodec::kF32, d);
      kernels.widen(block.k[i], d / 2, kPageSlots, to);
      if (values) kernels.widen(block.v[i], kPageSlots / 2, dp, v);
      block.k[i] = to;
      block.v[i] = v;
    }
    block.codec = KvCodec::kF32;
  }
}

}  // namespace vlcache::cpu
