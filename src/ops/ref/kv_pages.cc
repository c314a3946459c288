#include "ops/ref/kv_pages.h"

#include <cstring>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

DType element_type(KvCodec codec) {
  switch (codec) {
    case KvCodec::kF32:
      return DType::kF32;
    case KvCodec::kBF16:
      return DType::kBF16;
  }
  CHECK(false);
}

// K or V of a slot as a tensor [d].
Tensor slot_vector(std::byte* data, KvCodec codec, int64_t d) { return Tensor(data, element_type(codec), {d}); }

void read_slot(const KvView& kv, int head, int64_t slot, float* k, float* v) {
  const SlotRef ref = slot_ref(kv, head, slot);
  if (k != nullptr) load_values(slot_vector(ref.k, ref.codec, kv.head_dim), 0, kv.head_dim, k);
  if (v != nullptr) load_values(slot_vector(ref.v, ref.codec, kv.head_dim), 0, kv.head_dim, v);
}

void write_slot(const KvView& kv, int head, int64_t slot, const float* k, const float* v) {
  const SlotRef ref = slot_ref(kv, head, slot);
  store_values(k, kv.head_dim, slot_vector(ref.k, ref.codec, kv.head_dim), 0);
  store_values(v, kv.head_dim, slot_vector(ref.v, ref.codec, kv.head_dim), 0);
}

}  // namespace

SlotRef slot_ref(const KvView& kv, int head, int64_t slot) {
  CHECK(head >= 0 && head < kv.n_kv_heads && slot >= 0 && slot / kPageSlots < kv.page_stride);
  std::byte* page = kv.page(head, slot / kPageSlots);
  const KvCodec codec = kv.page_codec(head, slot / kPageSlots);
  const int64_t vector_bytes = kv.head_dim * dtype_bytes(element_type(codec));
  std::byte* k = page + slot % kPageSlots * vector_bytes;
  return {k, k + kPageSlots * vector_bytes, codec};
}

HeadSlots load_head(const KvView& kv, int head) {
  HeadSlots slots{.n_slots = kv.n_slots[head], .head_dim = kv.head_dim};
  CHECK(slots.n_slots >= 0);
  slots.k.resize(static_cast<size_t>(slots.n_slots * kv.head_dim));
  slots.v.resize(slots.k.size());
  for (int64_t j = 0; j < slots.n_slots; ++j) {
    read_slot(kv, head, j, slots.k.data() + j * kv.head_dim, slots.v.data() + j * kv.head_dim);
  }
  const int64_t at = static_cast<int64_t>(head) * kv.slot_stride;
  if (kv.slot_bias != nullptr) slots.bias = kv.slot_bias + at;
  if (kv.slot_pos != nullptr) slots.position = kv.slot_pos + at;
  return slots;
}

int64_t RefBackend::kv_page_bytes(KvCodec codec, int64_t head_dim) const {
  return 2 * kPageSlots * head_dim * dtype_bytes(element_type(codec));
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
      write_slot(kv, head, first + i, key.data(), value.data());
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
    read_slot(kv, head, slots[i], k.empty() ? nullptr : k.row<float>(row), v.empty() ? nullptr : v.row<float>(row));
  }
}

void RefBackend::kv_move(const KvView& src, const KvView& dst, int head, std::span<const int32_t> from,
                         std::span<const int32_t> to) {
  CHECK(from.size() == to.size() && src.head_dim == dst.head_dim);
  for (size_t i = 0; i < from.size(); ++i) {
    const SlotRef a = slot_ref(src, head, from[i]), b = slot_ref(dst, head, to[i]);
    CHECK(a.codec == b.codec);
    const size_t bytes = static_cast<size_t>(src.head_dim * dtype_bytes(element_type(a.codec)));
    std::memmove(b.k, a.k, bytes);
    std::memmove(b.v, a.v, bytes);
  }
}

void RefBackend::kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v) {
  for (const Tensor* t : {&k, &v}) CHECK(t->dtype == DType::kF32 && t->numel() == kv.head_dim && t->dense());
  write_slot(kv, head, slot, k.as<float>(), v.as<float>());
}

}  // namespace vlcache
