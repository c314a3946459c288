#include "ops/cpu/attention/kv_pages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/os/threads.h"
#include "ops/cpu/attention/coded_pages.h"
#include "ops/cpu/attention/transpose.h"

namespace vlcache::cpu {
namespace {

float half_value(uint16_t x) { return f16_to_float(x); }
float half_value(bf16 x) { return to_float(x); }
float half_value(float x) { return x; }

// Rows are transposed and encoded some at a time, so that their values stay near.
constexpr size_t kSlotsAtOnce = 16;

// x as To: bits where the types are the same.
template <typename To, typename From>
To cast(From x) {
  return from_float<To>(half_value(x));
}

template <typename To, typename From>
void convert_rows(const std::byte* x, int64_t stride, int64_t n, int64_t d, To* y) {
  for (int64_t i = 0; i < n; ++i) {
    const From* row = reinterpret_cast<const From*>(x + i * stride);
    for (int64_t c = 0; c < d; ++c) y[i * d + c] = cast<To>(row[c]);
  }
}

// n rows of the codec's type: the tensor's own where they are of that type already, else converted into `block`.
template <typename T>
struct TypedRows {
  const T* data;
  int64_t stride;  // elements
};
template <typename T>
TypedRows<T> typed_rows(const std::byte* x, int64_t stride, DType dtype, int64_t n, std::span<T> block) {
  const int64_t d = static_cast<int64_t>(block.size()) / n;
  const DType own = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;
  if (dtype == own) return {reinterpret_cast<const T*>(x), stride / static_cast<int64_t>(sizeof(T))};
  switch (dtype) {
    case DType::kF32:
      convert_rows<T, float>(x, stride, n, d, block.data());
      break;
    case DType::kBF16:
      convert_rows<T, bf16>(x, stride, n, d, block.data());
      break;
    default:
      CHECK(dtype == DType::kF16);
      convert_rows<T, uint16_t>(x, stride, n, d, block.data());
  }
  return {block.data(), d};
}

// One row of V into its half of a line of slot pairs; padding columns become zero.
void write_half_line(const bf16* x, int64_t d, int64_t dp, int half, uint16_t* line) {
  for (int64_t c = 0; c < d; ++c) line[2 * c + half] = x[c].bits;
  for (int64_t c = d; c < dp; ++c) line[2 * c + half] = 0;
}

void write_v_bf16(const TypedRows<bf16>& x, int64_t n, int begin, int64_t d, uint16_t* v) {
  const int64_t dp = padded_dim(d);
  int64_t i = 0;
  while (i < n) {
    const int64_t slot = begin + i;
    uint16_t* line = v + slot / 2 * 2 * dp;
    const bf16 *a = x.data + i * x.stride, *b = a + x.stride;
    if (slot % 2 != 0 || i + 1 == n) {
      write_half_line(a, d, dp, static_cast<int>(slot % 2), line);
      ++i;
      continue;
    }
    uint32_t* pairs = reinterpret_cast<uint32_t*>(line);
    for (int64_t c = 0; c < d; ++c) pairs[c] = a[c].bits | static_cast<uint32_t>(b[c].bits) << 16;
    std::fill(pairs + d, pairs + dp, 0u);
    i += 2;
  }
}

void write_slots_bf16(const PageRef& page, const HeadRows& rows, int begin, int n) {
  const int64_t d = page.head_dim;
  alignas(64) bf16 buffer[kPageSlots * kMaxHeadDim];  // rows of another type, converted
  const std::span<bf16> block(buffer, static_cast<size_t>(n * d));
  if (rows.k != nullptr) {
    const TypedRows<bf16> k = typed_rows(rows.k, rows.k_stride, rows.dtype, n, block);
    transpose_words(reinterpret_cast<const std::byte*>(k.data), 2 * k.stride, n, d / 2,
                    reinterpret_cast<uint32_t*>(page.data) + begin);
  }
  if (rows.v == nullptr) return;
  const TypedRows<bf16> v = typed_rows(rows.v, rows.v_stride, rows.dtype, n, block);
  write_v_bf16(v, n, begin, d, reinterpret_cast<uint16_t*>(page.data + kv_k_bytes(KvCodec::kBF16, d)));
}

void write_slots_f32(const PageRef& page, const HeadRows& rows, int begin, int n) {
  const int64_t d = page.head_dim, dp = padded_dim(d);
  alignas(64) float buffer[kPageSlots * kMaxHeadDim];  // 256 KiB of the thread's stack
  const std::span<float> block(buffer, static_cast<size_t>(n * d));
  if (rows.k != nullptr) {
    const TypedRows<float> k = typed_rows(rows.k, rows.k_stride, rows.dtype, n, block);
    transpose_words(reinterpret_cast<const std::byte*>(k.data), 4 * k.stride, n, d,
                    reinterpret_cast<uint32_t*>(page.data) + begin);
  }
  if (rows.v == nullptr) return;
  const TypedRows<float> v = typed_rows(rows.v, rows.v_stride, rows.dtype, n, block);
  float* y = reinterpret_cast<float*>(page.data + kv_k_bytes(KvCodec::kF32, d)) + begin * dp;
  for (int64_t i = 0; i < n; ++i, y += dp) {
    std::copy(v.data + i * v.stride, v.data + i * v.stride + d, y);
    std::fill(y + d, y + dp, 0.0f);
  }
}

void write_slots_coded(const PageRef& page, const HeadRows& rows, int begin, int n) {
  alignas(64) float k_buffer[kSlotsAtOnce * kMaxHeadDim], v_buffer[kSlotsAtOnce * kMaxHeadDim];
  constexpr int kSome = kSlotsAtOnce;
  for (int i = 0; i < n; i += kSome) {
    const int some = std::min(kSome, n - i);
    const auto size = static_cast<size_t>(some * page.head_dim);
    const auto floats = [&](const std::byte* x, int64_t stride, float* buffer) {
      return x == nullptr ? TypedRows<float>{nullptr, 0}
                          : typed_rows<float>(x + i * stride, stride, rows.dtype, some, {buffer, size});
    };
    const TypedRows<float> k = floats(rows.k, rows.k_stride, k_buffer), v = floats(rows.v, rows.v_stride, v_buffer);
    write_coded(page,
                {reinterpret_cast<const std::byte*>(k.data), reinterpret_cast<const std::byte*>(v.data), 4 * k.stride,
                 4 * v.stride, DType::kF32},
                begin + i, some);
  }
}

// Moves of slots of one page to slots of another page or of itself, in this order.
struct PageMove {
  const std::byte* from;
  std::byte* to;
  KvCodec codec;
  int64_t head_dim;
  SlotMap slots;  // slots of the whole view; only their place in the page counts
};

// Column j of every line of `n_lines` lines of 64 T.
template <typename T>
void move_columns(const PageMove& move, int64_t n_lines, const std::byte* from, std::byte* to) {
  const T* x = reinterpret_cast<const T*>(from);
  T* y = reinterpret_cast<T*>(to);
  const size_t n = move.slots.from.size();
  for (int64_t line = 0; line < n_lines; ++line, x += kPageSlots, y += kPageSlots) {
    for (size_t i = 0; i < n; ++i) y[move.slots.to[i] % kPageSlots] = x[move.slots.from[i] % kPageSlots];
  }
}

void move_page(const PageMove& move) {
  const int64_t d = move.head_dim, dp = padded_dim(d), k_bytes = kv_k_bytes(move.codec, d);
  const size_t n = move.slots.from.size();
  const bool whole = n == kPageSlots && move.slots.from[0] % kPageSlots == 0 && move.slots.to[0] % kPageSlots == 0;
  if (move.from == move.to && std::ranges::equal(move.slots.from, move.slots.to)) return;
  if (whole) {
    std::memcpy(move.to, move.from, static_cast<size_t>(kv_page_bytes(move.codec, d)));
    return;
  }
  if (is_coded(move.codec)) return move_coded({const_cast<std::byte*>(move.from), move.codec, d}, move.to, move.slots);
  move_columns<uint32_t>(move, move.codec == KvCodec::kF32 ? d : d / 2, move.from, move.to);
  const std::byte* from = move.from + k_bytes;
  std::byte* to = move.to + k_bytes;
  for (size_t i = 0; i < n; ++i) {
    const int64_t a = move.slots.from[i] % kPageSlots, b = move.slots.to[i] % kPageSlots;
    if (move.codec == KvCodec::kF32) {
      std::memmove(to + b * dp * 4, from + a * dp * 4, static_cast<size_t>(4 * dp));
      continue;
    }
    const uint16_t* x = reinterpret_cast<const uint16_t*>(from) + a / 2 * 2 * dp + a % 2;
    uint16_t* y = reinterpret_cast<uint16_t*>(to) + b / 2 * 2 * dp + b % 2;
    for (int64_t c = 0; c < 2 * dp; c += 2) y[c] = x[c];
  }
}

// Slots of one page, by their numbers in the sequence.
struct PageSlots {
  const std::byte* data;
  std::span<const int32_t> slots;
  int64_t head_dim;
  int64_t at(size_t i) const { return slots[i] % kPageSlots; }
};

// The halves of a word of two bf16, as f32.
float low_half(uint32_t word) { return std::bit_cast<float>(word << 16); }
float high_half(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }

void read_bf16(const PageSlots& from, const Tensor& k, const Tensor& v) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from.data);
  const int64_t d = from.head_dim, dp = padded_dim(d);
  bf16 rows[kSlotsAtOnce * kMaxHeadDim];
  for (size_t i = 0; i < from.slots.size() && !k.empty(); i += kSlotsAtOnce) {
    const std::span<const int32_t> some = from.slots.subspan(i, std::min(kSlotsAtOnce, from.slots.size() - i));
    gather_words(words, some, d / 2, reinterpret_cast<std::byte*>(rows), 2 * d);
    for (size_t j = 0; j < some.size(); ++j) {
      float* to = k.row<float>(static_cast<int64_t>(i + j));
      for (int64_t c = 0; c < d; ++c) to[c] = to_float(rows[static_cast<int64_t>(j) * d + c]);
    }
  }
  words += d / 2 * kPageSlots;
  for (size_t i = 0; i < from.slots.size() && !v.empty(); ++i) {
    const uint32_t* line = words + from.at(i) / 2 * dp;
    float* to = v.row<float>(static_cast<int64_t>(i));
    if (from.at(i) % 2 == 0) {
      for (int64_t c = 0; c < d; ++c) to[c] = low_half(line[c]);
    } else {
      for (int64_t c = 0; c < d; ++c) to[c] = high_half(line[c]);
    }
  }
}

void read_f32(const PageSlots& from, const Tensor& k, const Tensor& v) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from.data);
  const int64_t d = from.head_dim, dp = padded_dim(d);
  if (!k.empty()) gather_words(words, from.slots, d, k.data, 4 * k.stride);
  const float* values = reinterpret_cast<const float*>(from.data) + d * kPageSlots;
  for (size_t i = 0; i < from.slots.size() && !v.empty(); ++i) {
    std::copy_n(values + from.at(i) * dp, d, v.row<float>(static_cast<int64_t>(i)));
  }
}

void read_slots(KvCodec codec, const PageSlots& from, const Tensor& k, const Tensor& v) {
  switch (codec) {
    case KvCodec::kF32:
      return read_f32(from, k, v);
    case KvCodec::kBF16:
      return read_bf16(from, k, v);
    default:
      read_coded({const_cast<std::byte*>(from.data), codec, from.head_dim}, from.slots, k, v);
  }
}

// Slots of a page of values become codes of another page.
void encode_slots(KvCodec values, const PageSlots& from, std::span<const int32_t> to, const PageRef& page) {
  const int64_t d = page.head_dim;
  alignas(64) float k_buffer[kSlotsAtOnce * kMaxHeadDim], v_buffer[kSlotsAtOnce * kMaxHeadDim];
  for (size_t begin = 0, end = 0; begin < to.size(); begin = end) {  // runs of neighbouring slots
    const int32_t first = to[begin];
    while (end < to.size() && end - begin < kSlotsAtOnce && to[end] == first + static_cast<int32_t>(end - begin)) ++end;
    const auto n = static_cast<int64_t>(end - begin);
    const Tensor k(k_buffer, DType::kF32, {n, d}), v(v_buffer, DType::kF32, {n, d});
    read_slots(values, {from.data, from.slots.subspan(begin, end - begin), d}, k, v);
    write_coded(page, {k.data, v.data, 4 * d, 4 * d, DType::kF32}, first % kPageSlots, static_cast<int>(n));
  }
}

}  // namespace

void write_slots(const PageRef& page, const HeadRows& rows, int begin, int n) {
  CHECK(page.head_dim <= kMaxHeadDim && page.head_dim % 2 == 0 && begin >= 0 && begin + n <= kPageSlots);
  if (is_coded(page.codec)) return write_slots_coded(page, rows, begin, n);
  if (page.codec == KvCodec::kF32) return write_slots_f32(page, rows, begin, n);
  write_slots_bf16(page, rows, begin, n);
}

void kv_write(const Tensor& k, const Tensor& v, const KvView& kv) {
  const int64_t d = kv.head_dim, n_rows = k.rows();
  CHECK(k.rank == 3 && v.rank == 3 && v.rows() == n_rows && k.dim(1) == kv.n_kv_heads && v.dim(1) == kv.n_kv_heads);
  CHECK(k.dim(2) == d && v.dim(2) == d && k.dtype == v.dtype);
  if (n_rows == 0) return;
  const int64_t bytes = dtype_bytes(k.dtype);
  const int64_t pages_per_head = (n_rows + kPageSlots - 1) / kPageSlots + 1;
  const auto write = [&](int64_t task, int) {
    const int head = static_cast<int>(task / pages_per_head);
    const int64_t first = kv.n_slots[head] - n_rows;  // slot of row 0; rows before slot 0 are not written
    const int64_t page = std::max<int64_t>(first, 0) / kPageSlots + task % pages_per_head;
    const int64_t begin = std::max({first, page * kPageSlots, int64_t{0}});
    const int64_t end = std::min<int64_t>(kv.n_slots[head], (page + 1) * kPageSlots);
    if (begin >= end) return;
    const int64_t row = begin - first;
    const HeadRows rows{.k = k.data + (row * k.stride + head * d) * bytes,
                        .v = v.data + (row * v.stride + head * d) * bytes,
                        .k_stride = k.stride * bytes,
                        .v_stride = v.stride * bytes,
                        .dtype = k.dtype};
    write_slots({kv.page(head, page), kv.page_codec(head, page), d}, rows, static_cast<int>(begin - page * kPageSlots),
                static_cast<int>(end - begin));
  };
  const int64_t n_tasks = kv.n_kv_heads * pages_per_head;
  if (n_rows < 8) {  // a decode step: less work than waking a thread
    for (int64_t task = 0; task < n_tasks; ++task) write(task, 0);
    return;
  }
  parallel_for(n_tasks, write);
}

void kv_read(const KvView& kv, int head, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) {
  const int64_t d = kv.head_dim;
  for (const Tensor* t : {&k, &v}) {
    CHECK(t->empty() ||
          (t->dtype == DType::kF32 && t->rows() == static_cast<int64_t>(slots.size()) && t->row_size() == d));
  }
  parallel_ranges(static_cast<int64_t>(slots.size()), kPageSlots, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin, next = begin; i < end; i = next) {
      const int64_t page = slots[static_cast<size_t>(i)] / kPageSlots;
      for (; next < end && slots[static_cast<size_t>(next)] / kPageSlots == page; ++next) {
        const int32_t slot = slots[static_cast<size_t>(next)];
        CHECK(slot >= 0 && slot < kv.n_slots[head]);
      }
      const PageSlots from{kv.page(head, page), slots.subspan(static_cast<size_t>(i), static_cast<size_t>(next - i)),
                           d};
      read_slots(kv.page_codec(head, page), from, k.empty() ? k : k.slice_rows(i, next),
                 v.empty() ? v : v.slice_rows(i, next));
    }
  });
}

void kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v) {
  for (const Tensor* x : {&k, &v}) CHECK(x->empty() || (x->dtype == DType::kF32 && x->numel() == kv.head_dim));
  CHECK(slot >= 0);
  const int64_t page = slot / kPageSlots;
  write_slots({kv.page(head, page), kv.page_codec(head, page), kv.head_dim},
              {k.empty() ? nullptr : k.data, v.empty() ? nullptr : v.data, 0, 0, DType::kF32}, slot % kPageSlots, 1);
}

void kv_move(const KvView& src, const KvView& dst, int head, const SlotMap& slots) {
  CHECK(slots.from.size() == slots.to.size() && src.head_dim == dst.head_dim);
  // Runs that stay within one page of both views, in the order given.
  for (size_t begin = 0, end = 0; begin < slots.from.size(); begin = end) {
    const int64_t from = slots.from[begin] / kPageSlots, to = slots.to[begin] / kPageSlots;
    while (end < slots.from.size() && slots.from[end] / kPageSlots == from && slots.to[end] / kPageSlots == to) ++end;
    const KvCodec codec = src.page_codec(head, from), becomes = dst.page_codec(head, to);
    const SlotMap some{slots.from.subspan(begin, end - begin), slots.to.subspan(begin, end - begin)};
    if (codec == becomes) {
      move_page({src.page(head, from), dst.page(head, to), codec, src.head_dim, some});
    } else {
      CHECK(!is_coded(codec) && is_coded(becomes));
      encode_slots(codec, {src.page(head, from), some.from, src.head_dim}, some.to,
                   {dst.page(head, to), becomes, src.head_dim});
    }
  }
}

}  // namespace vlcache::cpu
