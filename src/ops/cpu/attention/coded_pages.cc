#include "ops/cpu/attention/coded_pages.h"

#include <algorithm>
#include <cstring>

#include "base/numeric/kv_codec.h"
#include "ops/cpu/attention/transpose.h"

namespace vlcache::cpu {
namespace {

// A code row of encode_head: its scale and d codes.
constexpr int64_t kScaleBytes = sizeof(bf16);
constexpr int64_t kMaxRowBytes = kScaleBytes + kMaxHeadDim;
constexpr size_t kSlotsAtOnce = 16;

// The four arrays of an int8 page.
struct Int8Page {
  int64_t d, dp;
  std::byte *k, *v;  // [d/4][64][4], [16][dp][4]
  std::byte *k_scales, *v_scales;

  explicit Int8Page(const PageRef& page)
      : d(page.head_dim),
        dp(padded_dim(d)),
        k(page.data),
        v(k + kv_k_bytes(KvCodec::kInt8, d)),
        k_scales(v - kPageSlots * kScaleBytes),
        v_scales(v + kPageSlots * dp) {
    CHECK(page.codec == KvCodec::kInt8 && d % 4 == 0 && d <= kMaxHeadDim);
  }
  // Code c of V of a slot is at v_line(slot)[4 * c].
  std::byte* v_line(int64_t slot) const { return v + slot / 4 * 4 * dp + slot % 4; }
};

// y[4 * c + i] = byte c of row i, of four rows `stride` bytes apart: four slots of V side by side.
void interleave_rows(const std::byte* x, int64_t stride, int64_t d, std::byte* y) {
  const std::byte *a = x, *b = a + stride, *c = b + stride, *e = c + stride;
  for (int64_t i = 0; i < d; ++i) y[4 * i] = a[i], y[4 * i + 1] = b[i], y[4 * i + 2] = c[i], y[4 * i + 3] = e[i];
}

void write_v(const Int8Page& page, const std::byte* codes, int64_t stride, int begin, int n) {
  for (int i = 0; i < n;) {
    const int slot = begin + i;
    std::byte* line = page.v_line(slot);
    if (slot % 4 == 0 && n - i >= 4) {
      interleave_rows(codes + i * stride, stride, page.d, line);
      std::memset(line + 4 * page.d, 0, static_cast<size_t>(4 * (page.dp - page.d)));
      i += 4;
      continue;
    }
    for (int64_t c = 0; c < page.d; ++c) line[4 * c] = codes[i * stride + c];
    for (int64_t c = page.d; c < page.dp; ++c) line[4 * c] = std::byte{};
    ++i;
  }
}

// Of four slots, as they are side by side.
void separate_rows(const std::byte* x, int64_t d, std::byte* y, int64_t stride) {
  std::byte *a = y, *b = a + stride, *c = b + stride, *e = c + stride;
  for (int64_t i = 0; i < d; ++i) a[i] = x[4 * i], b[i] = x[4 * i + 1], c[i] = x[4 * i + 2], e[i] = x[4 * i + 3];
}

void read_v(const Int8Page& page, std::span<const int32_t> slots, std::byte* codes, int64_t stride) {
  for (size_t i = 0; i < slots.size();) {
    const int64_t slot = slots[i] % kPageSlots;
    std::byte* row = codes + static_cast<int64_t>(i) * stride;
    const std::byte* line = page.v_line(slot);
    if (slot % 4 == 0 && is_run(slots.subspan(i), 4)) {
      separate_rows(line, page.d, row, stride);
      i += 4;
      continue;
    }
    for (int64_t c = 0; c < page.d; ++c) row[c] = line[4 * c];
    ++i;
  }
}

}  // namespace

void write_coded(const PageRef& page, const HeadRows& rows, int begin, int n) {
  const Int8Page to(page);
  const int64_t stride = coded_bytes(page.codec, to.d);
  std::byte coded[kPageSlots * kMaxRowBytes];
  const auto encode = [&](const std::byte* x, int64_t x_stride, std::byte* scales) {
    for (int i = 0; i < n; ++i) {
      std::byte* row = coded + i * stride;
      encode_head(page.codec, {reinterpret_cast<const float*>(x + i * x_stride), static_cast<size_t>(to.d)}, row);
      std::memcpy(scales + (begin + i) * kScaleBytes, row, kScaleBytes);
    }
  };
  if (rows.k != nullptr) {
    encode(rows.k, rows.k_stride, to.k_scales);
    transpose_words(coded + kScaleBytes, stride, n, to.d / 4, reinterpret_cast<uint32_t*>(to.k) + begin);
  }
  if (rows.v == nullptr) return;
  encode(rows.v, rows.v_stride, to.v_scales);
  write_v(to, coded + kScaleBytes, stride, begin, n);
}

void read_coded(const PageRef& page, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) {
  const Int8Page from(page);
  const int64_t stride = coded_bytes(page.codec, from.d);
  std::byte coded[kSlotsAtOnce * kMaxRowBytes];
  for (size_t i = 0; i < slots.size(); i += kSlotsAtOnce) {
    const std::span<const int32_t> some = slots.subspan(i, std::min(kSlotsAtOnce, slots.size() - i));
    const auto decode = [&](const std::byte* scales, const Tensor& x) {
      for (size_t j = 0; j < some.size(); ++j) {
        std::byte* row = coded + static_cast<int64_t>(j) * stride;
        std::memcpy(row, scales + some[j] % kPageSlots * kScaleBytes, kScaleBytes);
        decode_head(page.codec, row, {x.row<float>(static_cast<int64_t>(i + j)), static_cast<size_t>(from.d)});
      }
    };
    if (!k.empty()) {
      gather_words(reinterpret_cast<const uint32_t*>(from.k), some, from.d / 4, coded + kScaleBytes, stride);
      decode(from.k_scales, k);
    }
    if (!v.empty()) {
      read_v(from, some, coded + kScaleBytes, stride);
      decode(from.v_scales, v);
    }
  }
}

void move_coded(const PageRef& from, std::byte* to, const SlotMap& slots) {
  const Int8Page a(from), b({to, from.codec, from.head_dim});
  for (size_t i = 0; i < slots.from.size(); ++i) {
    const int64_t x = slots.from[i] % kPageSlots, y = slots.to[i] % kPageSlots;
    std::memmove(b.k_scales + y * kScaleBytes, a.k_scales + x * kScaleBytes, kScaleBytes);
    std::memmove(b.v_scales + y * kScaleBytes, a.v_scales + x * kScaleBytes, kScaleBytes);
    for (int64_t c = 0; c < a.d; c += 4) {
      std::memmove(b.k + c * kPageSlots + 4 * y, a.k + c * kPageSlots + 4 * x, 4);
    }
    for (int64_t c = 0; c < a.dp; ++c) b.v_line(y)[4 * c] = a.v_line(x)[4 * c];
  }
}

}  // namespace vlcache::cpu
