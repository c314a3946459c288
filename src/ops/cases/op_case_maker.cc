#include "ops/cases/op_case_maker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace vlcache {
namespace {

constexpr int64_t kGap = 5;  // elements between strided rows: odd, so that no row but the first is aligned

constexpr int kCacheCodecs = kKvCodecs;  // that cases fill

// Fills memory that no op has written: NaN in every float dtype.
constexpr int kUnwritten = 0xff;

void put(const Tensor& t, int64_t at, float value) {
  switch (t.dtype) {
    case DType::kF32:
      t.as<float>()[at] = value;
      return;
    case DType::kBF16:
      t.as<bf16>()[at] = to_bf16(value);
      return;
    case DType::kF16:
      t.as<uint16_t>()[at] = float_to_f16(value);
      return;
    default:
      CHECK(false);
  }
}

}  // namespace

std::string_view row_layout_name(RowLayout layout) {
  switch (layout) {
    case RowLayout::kDense:
      return "";
    case RowLayout::kStrided:
      return " strided";
    case RowLayout::kMisaligned:
      return " misaligned";
  }
  CHECK(false);
}

int32_t CacheShape::last_position() const { return 2 * *std::max_element(n_slots.begin(), n_slots.end()) + 3; }

Tensor OpCaseMaker::allocate(DType dtype, std::initializer_list<int64_t> dims, RowLayout layout) {
  Tensor t(nullptr, dtype, dims);
  const int64_t lead = layout == RowLayout::kMisaligned ? 1 : 0, size = dtype_bytes(dtype);
  if (layout != RowLayout::kDense) t.stride += kGap;
  const int64_t bytes = (lead + t.rows() * t.stride + 1) * size;
  Buffer& buffer = op_.buffers.emplace_back(bytes);
  std::memset(buffer.data(), kUnwritten, static_cast<size_t>(bytes));
  t.data = buffer.data() + lead * size;
  return t;
}

void OpCaseMaker::fill(const Tensor& t, float scale, DType rounding) {
  for (int64_t i = 0; i < t.rows(); ++i) {
    for (int64_t j = 0; j < t.row_size(); ++j) {
      const float value = uniform(scale);
      put(t, i * t.stride + j, rounding == DType::kBF16 ? to_float(to_bf16(value)) : value);
    }
  }
}

Tensor OpCaseMaker::input(std::initializer_list<int64_t> dims, float scale, RowLayout layout) {
  const Tensor t = allocate(backend_.compute_dtype(), dims, layout);
  fill(t, scale, values_);
  return t;
}

Tensor OpCaseMaker::input_as(DType dtype, std::initializer_list<int64_t> dims, float scale) {
  const Tensor t = allocate(dtype, dims, RowLayout::kDense);
  fill(t, scale, dtype);
  return t;
}

Tensor OpCaseMaker::scratch(DType dtype, std::initializer_list<int64_t> dims) {
  return allocate(dtype, dims, RowLayout::kDense);
}

Tensor OpCaseMaker::output(std::string name, std::initializer_list<int64_t> dims, RowLayout layout) {
  const Tensor t = allocate(backend_.compute_dtype(), dims, layout);
  watch(std::move(name), t, Agreement::kRounded);
  return t;
}

Tensor OpCaseMaker::output_f32(std::string name, std::initializer_list<int64_t> dims) {
  const Tensor t = allocate(DType::kF32, dims, RowLayout::kDense);
  watch(std::move(name), t, Agreement::kRounded);
  return t;
}

Tensor OpCaseMaker::in_place(std::string name, const Tensor& x) {
  watch(std::move(name), x, Agreement::kRounded);
  return x;
}

void OpCaseMaker::watch(std::string name, const Tensor& t, Agreement agreement) {
  op_.outputs.push_back({std::move(name), agreement, t});
  if (t.stride <= t.row_size() || t.rows() == 0) return;
  Tensor gap(t.data + t.row_size() * dtype_bytes(t.dtype), t.dtype, {t.rows(), t.stride - t.row_size()});
  gap.stride = t.stride;
  op_.untouched.push_back(gap);
}

std::span<int32_t> OpCaseMaker::ints(const std::vector<int32_t>& values) {
  Buffer& buffer = op_.buffers.emplace_back(static_cast<int64_t>((values.size() + 1) * sizeof(int32_t)));  // never null
  if (!values.empty()) std::memcpy(buffer.data(), values.data(), values.size() * sizeof(int32_t));
  return {reinterpret_cast<int32_t*>(buffer.data()), values.size()};
}

std::span<int32_t> OpCaseMaker::random_ints(int64_t n, int32_t below) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (int32_t& v : values) v = static_cast<int32_t>(random_() % static_cast<uint64_t>(below));
  return ints(values);
}

std::span<int32_t> OpCaseMaker::permutation(int32_t n) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random_() % i]);
  return ints(values);
}

const Weight& OpCaseMaker::packed(std::initializer_list<int64_t> part_rows, int64_t n_in) {
  std::vector<Tensor> parts;
  for (int64_t rows : part_rows) parts.push_back(input_as(values_, {rows, n_in}));
  return op_.weights.emplace_back(backend_.pack(parts));
}

namespace {

// Rows that are all in memory.
class RowsInMemory : public QuantSource {
 public:
  RowsInMemory(const QuantRows& rows, std::span<const int32_t> order) : rows_(rows), order_(order) {}
  QuantForm form() const override { return rows_.form; }
  int64_t n_out() const override { return rows_.n_rows; }
  int64_t n_in() const override { return rows_.n_in; }
  void read(int64_t first, int64_t n, QuantRows& out) const override {
    out.resize(rows_.form, n, rows_.n_in);
    const auto copy = [&](const auto& from, auto& to) {
      const int64_t width = std::ssize(from) / rows_.n_rows;
      std::copy_n(from.begin() + first * width, n * width, to.begin());
    };
    copy(rows_.codes, out.codes), copy(rows_.scales, out.scales), copy(rows_.mins, out.mins);
    copy(rows_.shared_scales, out.shared_scales), copy(rows_.shared_mins, out.shared_mins);
  }
  std::span<const int32_t> input_order() const override { return order_; }

 private:
  const QuantRows& rows_;
  std::span<const int32_t> order_;
};

}  // namespace

Weight OpCaseMaker::quantised(const QuantForm& form, int64_t n_out, int64_t n_in, std::span<const int32_t> order) {
  QuantRows rows(form, n_out, n_in);
  for (uint8_t& code : rows.codes) code = static_cast<uint8_t>(random_() & ((1u << form.bits) - 1u));
  const float largest = form.table == CodeTable::kNl4 ? 0x1p-7f : std::ldexp(1.0f, 1 - form.bits);
  // Some scales are negative, as those of Q4_0 may be.
  const auto scale = [&](float most) {
    return most * (random_() % 4 == 0 ? -0.5f : 1.0f) * (1.0f + 0.5f * uniform(1.0f));
  };
  const bool may_be_negative = form.scale == ScaleKind::kS8Of256 && form.min == MinKind::kNone;
  const bool brain = form.scale == ScaleKind::kBF16;
  for (uint16_t& bits : rows.scales) {
    bits = form.byte_scales() ? static_cast<uint16_t>(64 + random_() % 64)
           : brain            ? to_bf16(scale(largest)).bits
                              : float_to_f16(scale(largest));
  }
  for (uint16_t& bits : rows.scales) {
    if (may_be_negative && random_() % 4 == 0) bits = static_cast<uint8_t>(-bits);
  }
  // Minima that put the middle of the codes near 0, as those of trained weights do: large sums that cancel would hide
  // errors or make them.
  const uint32_t middle = 1u << (form.bits - 1);
  for (uint16_t& bits : rows.shared_scales) bits = float_to_f16(scale(largest) * 0x1p-7f);
  for (size_t i = 0; i < rows.shared_mins.size(); ++i)
    rows.shared_mins[i] = float_to_f16(f16_to_float(rows.shared_scales[i]) * static_cast<float>(middle));
  for (size_t i = 0; i < rows.mins.size(); ++i) {
    const auto near_middle = static_cast<uint16_t>(middle / 2 + random_() % middle);
    rows.mins[i] = form.min == MinKind::kU8          ? rows.scales[i]
                   : form.min == MinKind::kZeroPoint ? near_middle
                                                     : float_to_f16(f16_to_float(rows.scales[i]) * -near_middle);
  }
  return backend_.pack(RowsInMemory(rows, order));
}

void OpCaseMaker::place_pages(KvView& kv, CacheShape::Codecs codecs) {
  using Codecs = CacheShape::Codecs;
  static_assert(static_cast<int>(Codecs::kK8V4) == static_cast<int>(KvCodec::kK8V4));  // codecs come first
  kv.codec = codecs <= Codecs::kK8V4 ? static_cast<KvCodec>(codecs) : KvCodec::kBF16;
  const int32_t n_pages = kv.n_kv_heads * kv.page_stride;
  kv.pages = permutation(n_pages).data();
  for (int c = 0; c < kCacheCodecs; ++c) {
    const int64_t page_bytes = backend_.kv_page_bytes(static_cast<KvCodec>(c), kv.head_dim);
    Buffer& pool = op_.buffers.emplace_back(page_bytes * n_pages);
    std::memset(pool.data(), kUnwritten, static_cast<size_t>(pool.bytes()));
    kv.pools[c] = {pool.data(), page_bytes};
  }
  if (codecs < Codecs::kMixed || codecs > Codecs::kMixedAll) return;
  const int n_codecs = codecs == Codecs::kMixed ? 2 : codecs == Codecs::kMixedInt8 ? 3 : kKvCodecs;
  Buffer& of_pages = op_.buffers.emplace_back(n_pages);
  for (int32_t i = 0; i < n_pages; ++i) of_pages.data()[i] = std::byte{static_cast<unsigned char>(i % n_codecs)};
  kv.codecs = reinterpret_cast<const uint8_t*>(of_pages.data());
}

void OpCaseMaker::encode_born(KvView& kv, KvCodec codec) {
  const int32_t n_pages = kv.n_kv_heads * kv.page_stride;
  const std::span<int32_t> pages = permutation(n_pages), born = ints(std::vector<int32_t>(pages.size(), -1));
  std::byte* codecs = op_.buffers.emplace_back(n_pages).data();
  KvView coded = kv;
  coded.pages = pages.data();
  coded.codec = codec;
  for (int32_t h = 0; h < kv.n_kv_heads; ++h) {
    const int32_t end = coded_end(kv.n_slots[h] - 1);
    std::vector<int32_t> slots(static_cast<size_t>((end - 1) * kPageSlots));
    std::iota(slots.begin(), slots.end(), kPageSlots);
    backend_.kv_move(kv, coded, h, slots, slots);
    for (int32_t i = 0; i < kv.page_stride; ++i) {
      const auto at = static_cast<size_t>(h * kv.page_stride + i);
      const bool is_code = i >= 1 && i < end;
      codecs[at] = std::byte{static_cast<unsigned char>(is_code ? codec : kv.codec)};
      (is_code ? born[at] : pages[at]) = kv.pages[at];
    }
  }
  kv.pages = pages.data();
  kv.codecs = reinterpret_cast<const uint8_t*>(codecs);
  kv.born = born.data();
}

KvView OpCaseMaker::cache(const CacheShape& shape) {
  const int32_t n_heads = static_cast<int32_t>(shape.n_slots.size());
  const int32_t most = *std::max_element(shape.n_slots.begin(), shape.n_slots.end());
  KvView kv{.n_slots = ints(shape.n_slots).data(),
            .page_stride = most / kPageSlots + 1,
            .slot_stride = most + 3,
            .n_kv_heads = n_heads,
            .head_dim = static_cast<int32_t>(shape.head_dim)};
  place_pages(kv, shape.codecs);

  const auto is_hidden = [&](int32_t head, int32_t slot) {
    using Hidden = CacheShape::Hidden;
    if (shape.hidden == Hidden::kNone) return false;
    return random_() % 8 == 0 || (shape.hidden == Hidden::kPages && slot / kPageSlots % 2 == 0) ||
           (shape.hidden == Hidden::kHead && head == 0);
  };
  const Tensor bias = scratch(DType::kF32, {n_heads, kv.slot_stride});
  std::vector<int32_t> position(static_cast<size_t>(n_heads * kv.slot_stride), -1000000);
  const DType rounding = shape.codecs == CacheShape::Codecs::kF32 ? values_ : DType::kBF16;
  for (int32_t h = 0; h < n_heads; ++h) {
    const int32_t n = shape.n_slots[static_cast<size_t>(h)];
    int32_t at = shape.last_position();
    for (int32_t j = n - 1; j >= 0; --j) {
      const float merged = random_() % 8 == 0 ? std::log(2.0f + static_cast<float>(random_() % 5)) : 0.0f;
      bias.row<float>(h)[j] = is_hidden(h, j)   ? -std::numeric_limits<float>::infinity()
                              : shape.slot_bias ? merged
                                                : 0.0f;
      position[static_cast<size_t>(h * kv.slot_stride + j)] = at;
      at -= 1 + (j <= n - shape.fresh_rows && random_() % 4 == 0 ? 1 : 0);
    }
    KvView one = kv;  // kv_write fills all heads alike, so heads of different lengths are written one at a time
    one.n_kv_heads = 1;
    one.pages += h * kv.page_stride;
    one.n_slots += h;
    if (kv.codecs != nullptr) one.codecs += h * kv.page_stride;
    const Tensor k = scratch(DType::kF32, {n, 1, shape.head_dim}), v = scratch(DType::kF32, {n, 1, shape.head_dim});
    fill(k, 1.0f, rounding);
    fill(v, 1.0f, rounding);
    backend_.kv_write(k, v, one);
  }
  using Codecs = CacheShape::Codecs;
  if (shape.codecs == Codecs::kBornInt8) encode_born(kv, KvCodec::kInt8);
  if (shape.codecs == Codecs::kBornInt4) encode_born(kv, KvCodec::kInt4);
  if (shape.codecs == Codecs::kBornK8V4) encode_born(kv, KvCodec::kK8V4);
  if (shape.slot_bias || shape.hidden != CacheShape::Hidden::kNone) kv.slot_bias = bias.as<float>();
  if (shape.slot_pos) kv.slot_pos = ints(position).data();
  return kv;
}

void OpCaseMaker::watch_cache(const KvView& kv) {
  struct Read {
    int head;
    std::span<int32_t> slots;
    Tensor k, v;
  };
  std::vector<Read> reads;
  for (int h = 0; h < kv.n_kv_heads; ++h) {
    std::vector<int32_t> slots(static_cast<size_t>(kv.n_slots[h]));
    std::iota(slots.begin(), slots.end(), 0);
    const Tensor k = scratch(DType::kF32, {kv.n_slots[h], kv.head_dim});
    const Tensor v = scratch(DType::kF32, {kv.n_slots[h], kv.head_dim});
    watch("k of head " + std::to_string(h), k, Agreement::kExact);
    watch("v of head " + std::to_string(h), v, Agreement::kExact);
    reads.push_back({h, ints(slots), k, v});
  }
  op_.finish = [&backend = backend_, kv, reads] {
    for (const Read& r : reads) backend.kv_read(kv, r.head, r.slots, r.k, r.v);
  };
}

}  // namespace vlcache
