#include "ops/cpu/attention/coded_pages.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/attention/transpose.h"

namespace vlcache::cpu {
namespace {

constexpr int64_t kScaleBytes = sizeof(bf16);
constexpr int64_t kMaxRowBytes = kScaleBytes + kMaxHeadDim;  // a head as encode_head has it
constexpr size_t kSlotsAtOnce = 16;

// The four arrays of a page.
struct CodedPage {
  KvCodec codec;
  int64_t d, dp;
  int64_t group, n_scales;  // values under one scale; scales of a slot
  std::byte *k, *k_scales, *v, *v_scales;

  explicit CodedPage(const PageRef& page)
      : codec(page.codec),
        d(page.head_dim),
        dp(padded_dim(d)),
        group(is_int8() ? d : kInt4Group),
        n_scales((d + group - 1) / group),
        k(page.data),
        k_scales(k + kPageSlots * d * codec_bits(codec) / 8),
        v(k + kv_k_bytes(codec, d)),
        v_scales(v + kPageSlots * dp * codec_bits(codec) / 8) {
    CHECK(is_coded(codec) && d % (32 / codec_bits(codec)) == 0 && d <= kMaxHeadDim);
  }
  bool is_int8() const { return codec == KvCodec::kInt8; }
  int64_t k_words() const { return d * codec_bits(codec) / 32; }  // of a slot
  uint32_t* k_word(int64_t slot) const { return reinterpret_cast<uint32_t*>(k) + slot; }
  std::byte* k_scale(int64_t slot, int64_t i) const { return k_scales + (i * kPageSlots + slot) * kScaleBytes; }
  std::byte* v_scale(int64_t slot, int64_t i) const { return v_scales + (slot * n_scales + i) * kScaleBytes; }
  // Slots of V that share a line of dp words, and the byte with code 0 of a slot: code c is 4 * c bytes further.
  int64_t line_slots() const { return is_int8() ? 4 : 8; }
  std::byte* v_line(int64_t slot) const { return v + slot / line_slots() * 4 * dp + slot % 4; }
  // int4: which half of these bytes is a slot's.
  static bool is_high(int64_t slot) { return slot % 8 >= 4; }
};

// ---- rows of encode_head: per group a scale and codes. Here: codes of all groups together, [d] bytes or [d/2]
// --------

template <typename Visit>
void for_each_group(const CodedPage& page, const Visit& visit) {
  for (int64_t i = 0, row = 0, codes = 0; i < page.n_scales; ++i) {
    const int64_t n = std::min(page.group, page.d - i * page.group) * codec_bits(page.codec) / 8;
    visit(i, row, codes, static_cast<size_t>(n));
    row += kScaleBytes + n, codes += n;
  }
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

// ---- V: lines of four slots a word, of int4 four more in the high halves
// ----------------------------------------------

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
void write_v_slot(const CodedPage& page, const std::byte* codes, int64_t slot) {
  std::byte* line = page.v_line(slot);
  for (int64_t c = 0; c < page.dp; ++c) {
    const std::byte code = c < page.d ? codes[c] : std::byte{};
    if (page.is_int8()) {
      line[4 * c] = code;
    } else {
      put_half(line[4 * c], code, CodedPage::is_high(slot));
    }
  }
}

// A whole line of slots.
void write_v_line(const CodedPage& page, const std::byte* codes, int64_t stride, int64_t slot) {
  std::byte* line = page.v_line(slot);
  interleave_rows(codes, stride, page.d, line);
  std::memset(line + 4 * page.d, 0, static_cast<size_t>(4 * (page.dp - page.d)));
  if (page.is_int8()) return;
  std::byte high[4 * kMaxHeadDim];
  interleave_rows(codes + 4 * stride, stride, page.d, high);
  for (int64_t i = 0; i < 4 * page.d; ++i) line[i] = (line[i] & std::byte{15}) | high[i] << 4;
}

// Rows of codes of a byte.
void write_v(const CodedPage& page, const std::byte* codes, int64_t stride, int64_t begin, int64_t n) {
  for (int64_t i = 0; i < n;) {
    const int64_t slot = begin + i;
    if (slot % page.line_slots() == 0 && n - i >= page.line_slots()) {
      write_v_line(page, codes + i * stride, stride, slot);
      i += page.line_slots();
    } else {
      write_v_slot(page, codes + i * stride, slot);
      ++i;
    }
  }
}

void read_v(const CodedPage& page, std::span<const int32_t> slots, std::byte* codes, int64_t stride) {
  for (size_t i = 0; i < slots.size();) {
    const int64_t slot = slots[i] % kPageSlots;
    std::byte* rows = codes + static_cast<int64_t>(i) * stride;
    const std::byte* line = page.v_line(slot);
    const int n = slot % 4 == 0 && is_run(slots.subspan(i), 4) ? 4 : 1;
    if (n == 4) {
      separate_rows(line, page.d, rows, stride);
    } else {
      for (int64_t c = 0; c < page.d; ++c) rows[c] = line[4 * c];
    }
    if (!page.is_int8() && CodedPage::is_high(slot)) {
      for (int j = 0; j < n; ++j) {
        for (int64_t c = 0; c < page.d; ++c) rows[j * stride + c] >>= 4;
      }
    }
    i += static_cast<size_t>(n);
  }
}

}  // namespace

void write_coded(const PageRef& page, const HeadRows& rows, int begin, int n) {
  const CodedPage to(page);
  std::byte row[kMaxRowBytes], codes[kPageSlots * kMaxHeadDim];
  const auto encode = [&](const std::byte* x, std::byte* row_codes, const auto& scale) {
    encode_head(to.codec, {reinterpret_cast<const float*>(x), static_cast<size_t>(to.d)}, row);
    for_each_group(to, [&](int64_t i, int64_t from, int64_t at, size_t bytes) {
      std::memcpy(scale(i), row + from, kScaleBytes);
      std::memcpy(row_codes + at, row + from + kScaleBytes, bytes);
    });
  };
  if (rows.k != nullptr) {
    for (int i = 0; i < n; ++i) {
      std::byte* words = codes + i * 4 * to.k_words();
      encode(rows.k + i * rows.k_stride, words, [&](int64_t group) { return to.k_scale(begin + i, group); });
      if (!to.is_int8()) reorder_words(words, to.k_words(), to_k_order);
    }
    transpose_words(codes, 4 * to.k_words(), n, to.k_words(), to.k_word(begin));
  }
  if (rows.v == nullptr) return;
  std::byte pairs[kMaxHeadDim];
  for (int i = 0; i < n; ++i) {
    std::byte* bytes = codes + i * to.d;
    encode(rows.v + i * rows.v_stride, to.is_int8() ? bytes : pairs,
           [&](int64_t group) { return to.v_scale(begin + i, group); });
    if (!to.is_int8()) unpack_nibbles(pairs, to.d, bytes);
  }
  write_v(to, codes, to.d, begin, n);
}

void read_coded(const PageRef& page, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) {
  const CodedPage from(page);
  std::byte row[kMaxRowBytes], codes[kSlotsAtOnce * kMaxHeadDim];
  const auto decode = [&](const std::byte* row_codes, float* x, const auto& scale) {
    for_each_group(from, [&](int64_t i, int64_t to, int64_t at, size_t bytes) {
      std::memcpy(row + to, scale(i), kScaleBytes);
      std::memcpy(row + to + kScaleBytes, row_codes + at, bytes);
    });
    decode_head(from.codec, row, {x, static_cast<size_t>(from.d)});
  };
  for (size_t begin = 0; begin < slots.size(); begin += kSlotsAtOnce) {
    const std::span<const int32_t> some = slots.subspan(begin, std::min(kSlotsAtOnce, slots.size() - begin));
    if (!k.empty()) {
      gather_words(from.k_word(0), some, from.k_words(), codes, 4 * from.k_words());
      for (size_t i = 0; i < some.size(); ++i) {
        std::byte* words = codes + static_cast<int64_t>(i) * 4 * from.k_words();
        if (!from.is_int8()) reorder_words(words, from.k_words(), from_k_order);
        decode(words, k.row<float>(static_cast<int64_t>(begin + i)),
               [&](int64_t group) { return from.k_scale(some[i] % kPageSlots, group); });
      }
    }
    if (v.empty()) continue;
    read_v(from, some, codes, from.d);
    for (size_t i = 0; i < some.size(); ++i) {
      std::byte* bytes = codes + static_cast<int64_t>(i) * from.d;
      if (!from.is_int8()) pack_nibbles(bytes, from.d, bytes);
      decode(bytes, v.row<float>(static_cast<int64_t>(begin + i)),
             [&](int64_t group) { return from.v_scale(some[i] % kPageSlots, group); });
    }
  }
}

void move_coded(const PageRef& from, std::byte* to, const SlotMap& slots) {
  const CodedPage a(from), b({to, from.codec, from.head_dim});
  for (size_t i = 0; i < slots.from.size(); ++i) {
    const int64_t x = slots.from[i] % kPageSlots, y = slots.to[i] % kPageSlots;
    for (int64_t group = 0; group < a.n_scales; ++group) {
      std::memmove(b.k_scale(y, group), a.k_scale(x, group), kScaleBytes);
      std::memmove(b.v_scale(y, group), a.v_scale(x, group), kScaleBytes);
    }
    for (int64_t c = 0; c < a.k_words(); ++c) b.k_word(y)[c * kPageSlots] = a.k_word(x)[c * kPageSlots];
    const std::byte* v = a.v_line(x);
    std::byte* moved = b.v_line(y);
    for (int64_t c = 0; c < 4 * a.dp; c += 4) {
      if (a.is_int8()) {
        moved[c] = v[c];
      } else {
        put_half(moved[c], CodedPage::is_high(x) ? v[c] >> 4 : v[c], CodedPage::is_high(y));
      }
    }
  }
}

}  // namespace vlcache::cpu
