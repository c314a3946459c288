// Encodes rows of K and V, in pages and in records between requests: as values, or as whole numbers and their scale.
//
//   a head's d values of a row   bytes
//   f32, bf16                    the values
//   int8                         a scale (bf16), d codes of a byte
//   int4                         the same for every kInt4Group values (the last group may be smaller), two codes a
//                                byte, the even one in the low half
// k8v4 is a pair of codecs and encodes no row: its halves do (k_codec, v_codec).
//
// Codes are symmetric, -127..127 and -7..7, of the values after a Hadamard rotation of each group, block by block (a
// block is the largest power of two that divides the group, 256 at most), which spreads outliers over all values.
// Decoding gives a sum of whole numbers times the scale, rounded once, so every decoder returns the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/kv_codec_name.h"
#include "base/tensor.h"

namespace vlcache {

inline constexpr int64_t kInt4Group = 32;

// Of one head's d values.
int64_t coded_bytes(KvCodec codec, int64_t d);
// Values that are rotated together in a group of n.
int64_t rotation_block(int64_t n);
// x [d] = H x, block by block, as a coded codec rotates one head's values; twice gives x times the block's size, which
// divides the scale of each code: q . decoded = (H q / block) . codes, a sum of decoded rows = H (sum of codes) /
// block.
void rotate_head(KvCodec codec, std::span<float> x);

// One head's values of one row, of any codec: `row` [coded_bytes]. A value that is not finite makes its group NaN.
void encode_head(KvCodec codec, std::span<const float> x, std::byte* row);
void decode_head(KvCodec codec, const std::byte* row, std::span<float> x);

// x [n, H, d] f32 or bf16 to rows [n, H, coded_bytes]. A value that is not finite makes its group NaN.
void encode_rows(KvCodec codec, const Tensor& x, std::byte* rows);
// Decodes the same rows: y [n, H, d] f32 or bf16.
void decode_rows(KvCodec codec, const std::byte* rows, const Tensor& y);

}  // namespace vlcache
