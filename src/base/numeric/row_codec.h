// Encodes rows of K and V as they are kept between requests: as values, or as whole numbers and their scale.
//
//   a head's d values of a row   bytes
//   f32, bf16                    the values
//   int8                         a scale (bf16), d codes of a byte
//   int4                         the same for every kInt4Group values (the last group may be smaller), two codes a
//                                byte, the even one in the low half
//
// Codes are symmetric, -127..127 and -7..7, of the values after a Hadamard rotation of each group, block by block (a
// block is the largest power of two that divides the group, 256 at most), which spreads outliers over all values.
// Decoding gives a sum of whole numbers times the scale, rounded once, so every decoder returns the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/tensor.h"

namespace vlcache {

enum class RowCodec : uint8_t { kF32, kBF16, kInt8, kInt4 };

inline constexpr int64_t kInt4Group = 32;

std::string_view row_codec_name(RowCodec codec);
// Of one head's d values.
int64_t coded_bytes(RowCodec codec, int64_t d);
// Values that are rotated together in a group of n.
int64_t rotation_block(int64_t n);

// x [n, H, d] f32 or bf16 to rows [n, H, coded_bytes]. A value that is not finite makes its group NaN.
void encode_rows(RowCodec codec, const Tensor& x, std::byte* rows);
// Decodes the same rows: y [n, H, d] f32 or bf16.
void decode_rows(RowCodec codec, const std::byte* rows, const Tensor& y);

}  // namespace vlcache
