#include "ops/cpu/attention/coded_pages.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/attention/transpose.h"

namespace vlcache::cpu {
namespace {

constexpr int64_t kScaleBytes = sizeof(bf16);
constexpr int64_t kMaxRowBytes = kScaleBytes + kMaxHeadDim;  // a head as encode_head has it
constexpr size_t kSlotsAtOnce = 16;

// One half of a page, K or V: codes and scales of 64 slots.
struct CodedHalf {
  KvCodec codec;
  int64_t d;
  int64_t group, n_scales;  // values under one scale; scales of a slot
  std::byte *codes, *scales;

  // `width`: codes of a slot, padding included.
  CodedHalf(KvCodec codec_in, int64_t d_in, int64_t width, std::byte* data)
      : codec(codec_in),
        d(d_in),
        group(is_int8() ? d : kInt4Group),
        n_scales((d + group - 1) / group),
        codes(data),
        scales(codes + kPageSlots * width * codec_bits(codec) / 8) {
    CHECK(is_coded(codec) && d % 2 == 0 && d <= kMaxHeadDim);
  }
  bool is_int8() const { return codec == KvCodec::kInt8; }
  std::byte* scale(int64_t slot, int64_t i) const { return scales + (i * kPageSlots + slot) * kScaleBytes; }
};

struct CodedK : CodedHalf {
  explicit CodedK(const PageRef& page) : CodedHalf(k_codec(page.codec), page.head_dim, page.head_dim, page.data) {
    CHECK(d % (32 / codec_bits(codec)) == 0);
  }
  int64_t words() const { return d * codec_bits(codec) / 32; }  // of a slot
  uint32_t* word(int64_t slot) const { return reinterpret_cast<uint32_t*>(codes) + slot; }
};

struct CodedV : CodedHalf {
  int64_t dp;

  explicit CodedV(const PageRef& page)
      : CodedHalf(v_codec(page.codec), page.head_dim, padded_dim(page.head_dim),
                  page.data + kv_k_bytes(page.codec, page.head_dim)),
        dp(padded_dim(d)) {}
  // Slots that share a line of dp words, and the byte with code 0 of a slot: code c is 4 * c bytes further.
  int64_t line_slots() const { return is_int8() ? 4 : 8; }
  std::byte* line(int64_t slot) const { return codes + slot / line_slots() * 4 * dp + slot % 4; }
  // int4: which half of these bytes is a slot's.
  static bool is_high(int64_t slot) { return slot % 8 >= 4; }
};

// ---- rows of encode_head: per group a scale and codes. Here: codes of all groups together, [d] bytes or [d/2] -----

template <typename Visit>
void for_each_group(const CodedHalf& half, const Visit& visit) {
  for (int64_t i = 0, row = 0, codes = 0; i < half.n_scales; ++i) {
    const int64_t n = std::min(half.group, half.d - i * half.group) * codec_bits(half.codec) / 8;
    visit(i, row, codes, static_cast<size_t>(n));
    row += kScaleBytes + n, codes += n;
  }
}

// One row of f32 as codes, and its scales to scale(i).
template <typename Scale>
void encode_row(const CodedHalf& half, const std::byte* x, std::byte* codes, const Scale& scale) {
  std::byte row[kMaxRowBytes];
  encode_head(half.codec, {reinterpret_cast<const float*>(x), static_cast<size_t>(half.d)}, row);
  for_each_group(half, [&](int64_t i, int64_t from, int64_t at, size_t bytes) {
    std::memcpy(scale(i), row + from, kScaleBytes);
    std::memcpy(codes + at, row + from + kScaleBytes, bytes);
  });
}

template <typename Scale>
void decode_row(const CodedHalf& half, const std::byte* codes, const Scale& scale, float* x) {
  std::byte row[kMaxRowBytes];
  for_each_group(half, [&](int64_t i, int64_t to, int64_t at, size_t bytes) {
    std::memcpy(row + to, scale(i), kScaleBytes);
    std::memcpy(row + to + kScaleBytes, codes + at, bytes);
  });
  decode_head(half.codec, row, {x, static_cast<size_t>(half.d)});
}

// Two codes a byte to one a byte, and back. The high half of a byte of one code is undefined.
void unpack_nibbles(const std::byte* pairs, int64_t d, std::byte* codes) {
  for (int64_t i = 0; i < d / 2; ++i) codes[2 * i] = pairs[i], codes[2 * i + 1] = pairs[i] >> 4;
}
void pack_nibbles(const std::byte* codes, int64_t d, std::byte* pairs) {
  for (int64_t i = 0; i < d / 2; ++i) pairs[i] = (codes[2 * i] & std::byte{15}) | codes[2 * i + 1] << 4;
}

// Eight codes of four bits in their order to those of K: code i beside code i + 4, and back.
uint32_t to_k_order(uint32_t codes) {
  const uint32_t bytes = (codes ^ codes >> 8) & 0x0000ff00;  // swaps the two in the middle
  codes ^= bytes ^ bytes << 8;
  const uint32_t halves = (codes ^ codes >> 4) & 0x00f000f0;
  return codes ^ halves ^ halves << 4;
}
uint32_t from_k_order(uint32_t codes) {
  const uint32_t halves = (codes ^ codes >> 4) & 0x00f000f0;
  codes ^= halves ^ halves << 4;
  const uint32_t bytes = (codes ^ codes >> 8) & 0x0000ff00;
  return codes ^ bytes ^ bytes << 8;
}
template <typename Reorder>
void reorder_words(std::byte* codes, int64_t n, const Reorder& reorder) {
  for (int64_t i = 0; i < 4 * n; i += 4) {
    const uint32_t word = reorder(word_at(codes + i));
    std::memcpy(codes + i, &word, sizeof word);
  }
}

// ---- V: lines of four slots a word, of int4 four more in the high halves ------------------------------------------

// y[4 * c + i] = byte c of row i, of four rows `stride` bytes apart: four slots side by side; and back.
void interleave_rows(const std::byte* x, int64_t stride, int64_t d, std::byte* y) {
  const std::byte *a = x, *b = a + stride, *c = b + stride, *e = c + stride;
  for (int64_t i = 0; i < d; ++i) y[4 * i] = a[i], y[4 * i + 1] = b[i], y[4 * i + 2] = c[i], y[4 * i + 3] = e[i];
}
void separate_rows(const std::byte* x, int64_t d, std::byte* y, int64_t stride) {
  std::byte *a = y, *b = a + stride, *c = b + stride, *e = c + stride;
  for (int64_t i = 0; i < d; ++i) a[i] = x[4 * i], b[i] = x[4 * i + 1], c[i] = x[4 * i + 2], e[i] = x[4 * i + 3];
}

void put_half(std::byte& byte, std::byte code, bool high) {
  byte = high ? (byte & std::byte{15}) | code << 4 : (byte & std::byte{0xf0}) | (code & std::byte{15});
}

// A slot alone.
void write_v_slot(const CodedV& v, const std::byte* codes, int64_t slot) {
  std::byte* line = v.line(slot);
  for (int64_t c = 0; c < v.dp; ++c) {
    const std::byte code = c < v.d ? codes[c] : std::byte{};
    if (v.is_int8()) {
      line[4 * c] = code;
    } else {
      put_half(line[4 * c], code, CodedV::is_high(slot));
    }
  }
}

// A whole line of slots.
void write_v_line(const CodedV& v, const std::byte* codes, int64_t stride, int64_t slot) {
  std::byte* line = v.line(slot);
  interleave_rows(codes, stride, v.d, line);
  std::memset(line + 4 * v.d, 0, static_cast<size_t>(4 * (v.dp - v.d)));
  if (v.is_int8()) return;
  std::byte high[4 * kMaxHeadDim];
  interleave_rows(codes + 4 * stride, stride, v.d, high);
  for (int64_t i = 0; i < 4 * v.d; ++i) line[i] = (line[i] & std::byte{15}) | high[i] << 4;
}

// Rows of codes of a byte.
void write_v(const CodedV& v, const std::byte* codes, int64_t stride, int64_t begin, int64_t n) {
  for (int64_t i = 0; i < n;) {
    const int64_t slot = begin + i;
    if (slot % v.line_slots() == 0 && n - i >= v.line_slots()) {
      write_v_line(v, codes + i * stride, stride, slot);
      i += v.line_slots();
    } else {
      write_v_slot(v, codes + i * stride, slot);
      ++i;
    }
  }
}

void read_v(const CodedV& v, std::span<const int32_t> slots, std::byte* codes, int64_t stride) {
  for (size_t i = 0; i < slots.size();) {
    const int64_t slot = slots[i] % kPageSlots;
    std::byte* rows = codes + static_cast<int64_t>(i) * stride;
    const std::byte* line = v.line(slot);
    const int n = slot % 4 == 0 && is_run(slots.subspan(i), 4) ? 4 : 1;
    if (n == 4) {
      separate_rows(line, v.d, rows, stride);
    } else {
      for (int64_t c = 0; c < v.d; ++c) rows[c] = line[4 * c];
    }
    if (!v.is_int8() && CodedV::is_high(slot)) {
      for (int j = 0; j < n; ++j) {
        for (int64_t c = 0; c < v.d; ++c) rows[j * stride + c] >>= 4;
      }
    }
    i += static_cast<size_t>(n);
  }
}

}  // namespace

void write_coded(const PageRef& page, const HeadRows& rows, int begin, int n) {
  std::byte codes[kPageSlots * kMaxHeadDim];
  if (rows.k != nullptr) {
    const CodedK k(page);
    for (int i = 0; i < n; ++i) {
      std::byte* words = codes + i * 4 * k.words();
      encode_row(k, rows.k + i * rows.k_stride, words, [&](int64_t group) { return k.scale(begin + i, group); });
      if (!k.is_int8()) reorder_words(words, k.words(), to_k_order);
    }
    transpose_words(codes, 4 * k.words(), n, k.words(), k.word(begin));
  }
  if (rows.v == nullptr) return;
  const CodedV v(page);
  std::byte pairs[kMaxHeadDim];
  for (int i = 0; i < n; ++i) {
    std::byte* bytes = codes + i * v.d;
    encode_row(v, rows.v + i * rows.v_stride, v.is_int8() ? bytes : pairs,
               [&](int64_t group) { return v.scale(begin + i, group); });
    if (!v.is_int8()) unpack_nibbles(pairs, v.d, bytes);
  }
  write_v(v, codes, v.d, begin, n);
}

void read_coded(const PageRef& page, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) {
  const CodedK from_k(page);
  const CodedV from_v(page);
  std::byte codes[kSlotsAtOnce * kMaxHeadDim];
  for (size_t begin = 0; begin < slots.size(); begin += kSlotsAtOnce) {
    const std::span<const int32_t> some = slots.subspan(begin, std::min(kSlotsAtOnce, slots.size() - begin));
    const auto slot = [&](size_t i) { return int64_t{some[i] % kPageSlots}; };
    const auto row = [&](const Tensor& t, size_t i) { return t.row<float>(static_cast<int64_t>(begin + i)); };
    if (!k.empty()) {
      const int64_t n = from_k.words();
      gather_words(from_k.word(0), some, n, codes, 4 * n);
      for (size_t i = 0; i < some.size(); ++i) {
        std::byte* words = codes + static_cast<int64_t>(i) * 4 * n;
        if (!from_k.is_int8()) reorder_words(words, n, from_k_order);
        decode_row(
            from_k, words, [&](int64_t group) { return from_k.scale(slot(i), group); }, row(k, i));
      }
    }
    if (v.empty()) continue;
    read_v(from_v, some, codes, from_v.d);
    for (size_t i = 0; i < some.size(); ++i) {
      std::byte* bytes = codes + static_cast<int64_t>(i) * from_v.d;
      if (!from_v.is_int8()) pack_nibbles(bytes, from_v.d, bytes);
      decode_row(
          from_v, bytes, [&](int64_t group) { return from_v.scale(slot(i), group); }, row(v, i));
    }
  }
}

void move_coded(const PageRef& from, std::byte* to, const SlotMap& slots) {
  const PageRef other{to, from.codec, from.head_dim};
  const CodedK from_k(from), to_k(other);
  const CodedV from_v(from), to_v(other);
  for (size_t i = 0; i < slots.from.size(); ++i) {
    const int64_t x = slots.from[i] % kPageSlots, y = slots.to[i] % kPageSlots;
    for (int64_t group = 0; group < from_k.n_scales; ++group)
      std::memmove(to_k.scale(y, group), from_k.scale(x, group), kScaleBytes);
    for (int64_t group = 0; group < from_v.n_scales; ++group)
      std::memmove(to_v.scale(y, group), from_v.scale(x, group), kScaleBytes);
    for (int64_t c = 0; c < from_k.words(); ++c) to_k.word(y)[c * kPageSlots] = from_k.word(x)[c * kPageSlots];
    const std::byte* v = from_v.line(x);
    std::byte* moved = to_v.line(y);
    for (int64_t c = 0; c < 4 * from_v.dp; c += 4) {
      if (from_v.is_int8()) {
        moved[c] = v[c];
      } else {
        put_half(moved[c], CodedV::is_high(x) ? v[c] >> 4 : v[c], CodedV::is_high(y));
      }
    }
  }
}

}  // namespace vlcache::cpu
