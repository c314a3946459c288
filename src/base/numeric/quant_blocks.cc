// Layouts as `gguf` 0.19.0 reads them (quants.py).
#include "base/numeric/quant_blocks.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/at.h"
#include "base/dtype.h"
#include "base/error.h"

namespace vlcache {
namespace {

using enum ScaleKind;
constexpr MinKind kNoMin = MinKind::kNone;
constexpr CodeTable kLinear = CodeTable::kLinear;

constexpr std::array<BlockShape, kBlockKinds> kShapes = {{
    {"Q4_0", 32, 18, {4, 32, kF16, kNoMin, kLinear}},
    {"Q4_1", 32, 20, {4, 32, kF16, MinKind::kF16, kLinear}},
    {"Q5_0", 32, 22, {5, 32, kF16, kNoMin, kLinear}},
    {"Q5_1", 32, 24, {5, 32, kF16, MinKind::kF16, kLinear}},
    {"Q8_0", 32, 34, {8, 32, kF16, kNoMin, kLinear}},
    {"Q4_K", 256, 144, {4, 32, kS8Of256, MinKind::kU8, kLinear}},
    {"Q5_K", 256, 176, {5, 32, kS8Of256, MinKind::kU8, kLinear}},
    {"Q6_K", 256, 210, {6, 16, kS8Of256, kNoMin, kLinear}},
    {"IQ4_NL", 32, 18, {4, 32, kF16, kNoMin, CodeTable::kNl4}},
    {"IQ4_XS", 256, 136, {4, 32, kS8Of256, kNoMin, CodeTable::kNl4}},
    {"MXFP4", 32, 17, {4, 32, kBF16, kNoMin, CodeTable::kFp4}},
    {"NVFP4", 64, 36, {4, 16, kF16, kNoMin, CodeTable::kFp4}},
}};

uint8_t u8(const std::byte* p) { return std::to_integer<uint8_t>(*p); }
uint16_t u16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

// Destination of the codes and scales of one block.
struct BlockPlace {
  uint8_t* codes;
  uint16_t *scales, *mins, *shared_scale, *shared_min;
};

// 2 n codes from n bytes: the low halves are the first n.
void halves(const std::byte* from, int64_t n, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = u8(from + i) & 0xfu, codes[n + i] = u8(from + i) >> 4;
}

// The fifth bits of 32 codes.
void add_bits(const std::byte* from, uint8_t* codes) {
  for (int64_t i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((u8(from + i / 8) >> (i % 8) & 1u) << 4);
}

// Eight scales and minima of 6 bits in 12 bytes.
void six_bit_pairs(const std::byte* from, const BlockPlace& to) {
  for (int64_t i = 0; i < 4; ++i) {
    const uint8_t d = u8(from + i), m = u8(from + 4 + i), both = u8(from + 8 + i);
    to.scales[i] = d & 0x3fu, to.scales[4 + i] = (both & 0xfu) | (d >> 2 & 0x30u);
    to.mins[i] = m & 0x3fu, to.mins[4 + i] = static_cast<uint16_t>(both >> 4 | (m >> 2 & 0x30u));
  }
}

void q4_k(const std::byte* p, bool fifth_bits, const BlockPlace& to) {
  *to.shared_scale = u16(p), *to.shared_min = u16(p + 2);
  six_bit_pairs(p + 4, to);
  const std::byte *high = p + 16, *low = fifth_bits ? high + 32 : high;
  for (int64_t i = 0; i < 4; ++i) halves(low + 32 * i, 32, to.codes + 64 * i);
  for (int64_t i = 0; i < 256 && fifth_bits; ++i)
    to.codes[i] |= static_cast<uint8_t>((u8(high + i % 32) >> (i / 32) & 1u) << 4);
}

void q6_k(const std::byte* p, const BlockPlace& to) {
  for (int64_t half = 0; half < 2; ++half) {
    const std::byte *low = p + 64 * half, *high = p + 128 + 32 * half;
    for (int64_t i = 0; i < 128; ++i) {
      const uint8_t pair = u8(low + i % 64), four = u8(high + i % 32);
      to.codes[128 * half + i] =
          static_cast<uint8_t>((i < 64 ? pair & 0xfu : pair >> 4) | (four >> (i / 32 * 2) & 3u) << 4);
    }
  }
  for (int64_t i = 0; i < 16; ++i) to.scales[i] = u8(p + 192 + i);
  *to.shared_scale = u16(p + 208);
}

void iq4_xs(const std::byte* p, const BlockPlace& to) {
  *to.shared_scale = u16(p);
  for (int i = 0; i < 8; ++i) {
    const unsigned low = u8(p + 4 + i / 2) >> (i % 2 * 4) & 0xfu, high = u16(p + 2) >> (2 * i) & 3u;
    to.scales[i] = static_cast<uint8_t>((low | high << 4) - 32u);
    halves(p + 8 + 16 * i, 16, to.codes + 32 * i);
  }
}

// Half of 2^(e - 127), as bf16, whose subnormals hold the two smallest.
uint16_t half_power(uint8_t e) { return static_cast<uint16_t>(e < 2 ? 0x20u << e : (e - 1u) << 7); }

// Half of an E4M3 number without a sign, as f16. As in ggml, the code of NaN is 0.
uint16_t half_e4m3(uint8_t x) {
  if (x == 0x7f) return 0;
  const int exponent = x >> 3 & 0xf, mantissa = x & 7;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
  return float_to_f16(0.5f * value);
}

void read_block(BlockKind kind, const std::byte* p, const BlockPlace& to) {
  switch (kind) {
    case BlockKind::kQ4_0:
    case BlockKind::kIq4Nl:
      *to.scales = u16(p);
      return halves(p + 2, 16, to.codes);
    case BlockKind::kQ4_1:
      *to.scales = u16(p), *to.mins = u16(p + 2);
      return halves(p + 4, 16, to.codes);
    case BlockKind::kQ5_0:
      *to.scales = u16(p);
      halves(p + 6, 16, to.codes);
      return add_bits(p + 2, to.codes);
    case BlockKind::kQ5_1:
      *to.scales = u16(p), *to.mins = u16(p + 2);
      halves(p + 8, 16, to.codes);
      return add_bits(p + 4, to.codes);
    case BlockKind::kQ8_0:
      *to.scales = u16(p);
      for (int64_t i = 0; i < 32; ++i) to.codes[i] = u8(p + 2 + i) ^ 0x80u;  // two's complement plus 128
      return;
    case BlockKind::kQ4_K:
      return q4_k(p, false, to);
    case BlockKind::kQ5_K:
      return q4_k(p, true, to);
    case BlockKind::kQ6_K:
      return q6_k(p, to);
    case BlockKind::kIq4Xs:
      return iq4_xs(p, to);
    case BlockKind::kMxfp4:
      *to.scales = half_power(u8(p));
      return halves(p + 1, 16, to.codes);
    case BlockKind::kNvfp4:
      for (int64_t i = 0; i < 4; ++i) {
        to.scales[i] = half_e4m3(u8(p + i));
        halves(p + 4 + 8 * i, 8, to.codes + 16 * i);
      }
      return;
  }
  CHECK(false);
}

}  // namespace

const BlockShape& block_shape(BlockKind kind) { return kShapes[static_cast<size_t>(kind)]; }

BlockRows::BlockRows(BlockKind kind, std::span<const std::byte> blocks, int64_t n_out, int64_t n_in)
    : kind_(kind), shape_(block_shape(kind)), blocks_(blocks), n_out_(n_out), n_in_(n_in) {
  CHECK(n_in % shape_.n_values == 0 && std::ssize(blocks) == n_out * (n_in / shape_.n_values) * shape_.bytes);
}

void BlockRows::read(int64_t first, int64_t n, QuantRows& out) const {
  CHECK(0 <= first && first + n <= n_out_);
  out.resize(shape_.form, n, n_in_);
  const int64_t per_row = n_in_ / shape_.n_values, groups = shape_.n_values / shape_.form.group;
  const auto place = [](std::vector<uint16_t>& words, int64_t i) { return words.empty() ? nullptr : words.data() + i; };
  for (int64_t i = 0; i < n * per_row; ++i) {
    read_block(kind_, blocks_.data() + (first * per_row + i) * shape_.bytes,
               {out.codes.data() + i * shape_.n_values, place(out.scales, i * groups), place(out.mins, i * groups),
                place(out.shared_scales, i), place(out.shared_mins, i)});
  }
}

}  // namespace vlcache
