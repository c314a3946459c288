#include "ops/ref/kv_pages.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/numeric/kv_codec.h"
#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

// K and V of one slot inside its page.
struct SlotRef {
  std::byte* k;
  std::byte* v;
  KvCodec codec;
};

struct RowBytes {
  int64_t k, v;
};
RowBytes row_bytes(KvCodec codec, int64_t d) {
  return {coded_bytes(k_codec(codec), d), coded_bytes(v_codec(codec), d)};
}

SlotRef slot_of(const KvView::Form& page, int64_t slot, int64_t d) {
  const RowBytes bytes = row_bytes(page.codec, d);
  const int64_t i = slot % kPageSlots;
  return {page.data + i * bytes.k, page.data + kPageSlots * bytes.k + i * bytes.v, page.codec};
}

SlotRef slot_ref(const KvView& kv, int head, int64_t slot) {
  CHECK(head >= 0 && head < kv.n_kv_heads && slot >= 0 && slot / kPageSlots < kv.page_stride);
  const int64_t page = slot / kPageSlots;
  CHECK(kv.holds(head, page));
  return slot_of({kv.page(head, page), kv.page_codec(head, page)}, slot, kv.head_dim);
}

void read_slot(const SlotRef& slot, int64_t d, float* k, float* v) {
  if (k != nullptr) decode_head(k_codec(slot.codec), slot.k, {k, static_cast<size_t>(d)});
  if (v != nullptr) decode_head(v_codec(slot.codec), slot.v, {v, static_cast<size_t>(d)});
}

void write_slot(const SlotRef& slot, std::span<const float> k, std::span<const float> v) {
  encode_head(k_codec(slot.codec), k, slot.k);
  encode_head(v_codec(slot.codec), v, slot.v);
}

}  // namespace

HeadSlots load_head(const KvView& kv, int head, int32_t end) {
  HeadSlots slots{.n_slots = kv.n_slots[head], .head_dim = kv.head_dim};
  CHECK(head >= 0 && head < kv.n_kv_heads && slots.n_slots >= 0 &&
        slots.n_slots <= int64_t{kv.page_stride} * kPageSlots);
  slots.k.resize(static_cast<size_t>(slots.n_slots * kv.head_dim));
  slots.v.resize(slots.k.size());
  for (int64_t j = 0; j < slots.n_slots; ++j) {
    if (!kv.holds(head, j / kPageSlots)) {
      std::fill_n(slots.k.data() + j * kv.head_dim, kv.head_dim, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(slots.v.data() + j * kv.head_dim, kv.head_dim, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    read_slot(slot_of(kv.form(head, j / kPageSlots, end), j, kv.head_dim), kv.head_dim,
              slots.k.data() + j * kv.head_dim, slots.v.data() + j * kv.head_dim);
  }
  const int64_t at = static_cast<int64_t>(head) * kv.slot_stride;
  if (kv.slot_bias != nullptr) slots.bias = kv.slot_bias + at;
  if (kv.slot_pos != nullptr) slots.position = kv.slot_pos + at;
  return slots;
}

int64_t RefBackend::kv_page_bytes(KvCodec codec, int64_t head_dim) const {
  const RowBytes bytes = row_bytes(codec, head_dim);
  return kPageSlots * (bytes.k + bytes.v);
}

void RefBackend::kv_write(const Tensor& k, const Tensor& v, const KvView& kv) {
  const int64_t n_rows = k.rows(), d = kv.head_dim;
  CHECK(k.rank == 3 && k.dim(1) == kv.n_kv_heads && k.dim(2) == d && same_shape(k, v));
  parallel_for(kv.n_kv_heads, [&](int64_t task, int) {
    const int head = static_cast<int>(task);
    const int64_t first = kv.n_slots[head] - n_rows;
    CHECK(first >= 0);
    std::vector<float> key(static_cast<size_t>(d)), value(key.size());
    for (int64_t i = 0; i < n_rows; ++i) {
      load_values(k, i * k.stride + head * d, d, key.data());
      load_values(v, i * v.stride + head * d, d, value.data());
      write_slot(slot_ref(kv, head, first + i), key, value);
    }
  });
}

void RefBackend::kv_read(const KvView& kv, int head, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) {
  for (const Tensor* t : {&k, &v}) {
    if (t->empty()) continue;
    CHECK(t->dtype == DType::kF32 && t->rows() == static_cast<int64_t>(slots.size()) && t->row_size() == kv.head_dim);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i);
    read_slot(slot_ref(kv, head, slots[i]), kv.head_dim, k.empty() ? nullptr : k.row<float>(row),
              v.empty() ? nullptr : v.row<float>(row));
  }
}

void RefBackend::kv_move(const KvView& src, const KvView& dst, int head, std::span<const int32_t> from,
                         std::span<const int32_t> to) {
  CHECK(from.size() == to.size() && src.head_dim == dst.head_dim);
  const int64_t d = src.head_dim;
  std::vector<float> key(static_cast<size_t>(d)), value(key.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const SlotRef a = slot_ref(src, head, from[i]), b = slot_ref(dst, head, to[i]);
    if (a.codec != b.codec) {
      CHECK(is_coded(b.codec) && !is_coded(a.codec));
      read_slot(a, d, key.data(), value.data());
      write_slot(b, key, value);
      continue;
    }
    const RowBytes bytes = row_bytes(a.codec, d);
    std::memmove(b.k, a.k, static_cast<size_t>(bytes.k));
    std::memmove(b.v, a.v, static_cast<size_t>(bytes.v));
  }
}

void RefBackend::kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v) {
  const SlotRef ref = slot_ref(kv, head, slot);
  const auto set = [&](KvCodec codec, const Tensor& x, std::byte* to) {
    if (x.empty()) return;
    CHECK(x.dtype == DType::kF32 && x.numel() == kv.head_dim && x.dense());
    encode_head(codec, {x.as<float>(), static_cast<size_t>(kv.head_dim)}, to);
  };
  set(k_codec(ref.codec), k, ref.k);
  set(v_codec(ref.codec), v, ref.v);
}

}  // namespace vlcache
