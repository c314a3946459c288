#include <numeric>

#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

using Codecs = CacheShape::Codecs;

const char* codecs_name(Codecs codecs) {
  static constexpr const char* kCodecNames[] = {" f32",       " bf16",      " int8",       " int4",
                                                " k8v4",      " mixed",     " mixed int8", " mixed all",
                                                " born int8", " born int4", " born k8v4"};
  return kCodecNames[static_cast<size_t>(codecs)];
}

std::string describe(const CacheShape& s) {
  std::string text = "slots";
  for (int32_t n : s.n_slots) text += numbered(" ", n);
  return text + " d=" + std::to_string(s.head_dim) + codecs_name(s.codecs);
}

// Rows of any float dtype into the end of a filled cache; the slots before must stay.
void add_write_case(OpCases& cases, const CacheShape& shape, int64_t n_rows, DType source) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const KvView kv = make.cache(shape);
    const int64_t n_heads = kv.n_kv_heads, d = shape.head_dim;
    const Tensor k = make.input_as(source, {n_rows, n_heads, d}), v = make.input_as(source, {n_rows, n_heads, d});
    make.watch_cache(kv);
    op.run = [&backend = setup.backend, k, v, kv] { backend.kv_write(k, v, kv); };
  };
  cases.push_back({"kv_write",
                   numbered("n=", n_rows) + " " + std::string(dtype_name(source)) + " into " + describe(shape),
                   prepare});
}

// Rows that are columns of a fused projection.
void add_strided_write_case(OpCases& cases, RowLayout layout) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const KvView kv = make.cache({.n_slots = {81, 200}, .head_dim = 80});
    const Tensor k = make.input({70, 2, 80}, 1.0f, layout), v = make.input({70, 2, 80}, 1.0f, layout);
    make.watch_cache(kv);
    op.run = [&backend = setup.backend, k, v, kv] { backend.kv_write(k, v, kv); };
  };
  cases.push_back({"kv_write", "n=70 d=80" + std::string(row_layout_name(layout)), prepare});
}

void add_read_case(OpCases& cases, const CacheShape& shape, bool with_k, bool with_v) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const KvView kv = make.cache(shape);
    const int64_t n = 37;
    const std::span<int32_t> slots = make.random_ints(n, shape.n_slots.back());
    const int head = kv.n_kv_heads - 1;
    Tensor k, v;
    if (with_k) make.watch("k", k = make.scratch(DType::kF32, {n, shape.head_dim}), Agreement::kExact);
    if (with_v) make.watch("v", v = make.scratch(DType::kF32, {n, shape.head_dim}), Agreement::kExact);
    op.run = [&backend = setup.backend, kv, head, slots, k, v] { backend.kv_read(kv, head, slots, k, v); };
  };
  cases.push_back({"kv_read", describe(shape) + (with_k ? " K" : "") + (with_v ? " V" : ""), prepare});
}

// Every third slot survives, in place, as after compaction.
void add_compaction_case(OpCases& cases, const CacheShape& shape) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const KvView kv = make.cache(shape);
    std::vector<int32_t> from, to;
    for (int32_t j = 0; j < shape.n_slots[0]; j += j < 5 ? 1 : 3) from.push_back(j);
    to.resize(from.size());
    std::iota(to.begin(), to.end(), 0);
    const std::span<int32_t> from_slots = make.ints(from), to_slots = make.ints(to);
    make.watch_cache(kv);
    op.run = [&backend = setup.backend, kv, from_slots, to_slots] { backend.kv_move(kv, kv, 0, from_slots, to_slots); };
  };
  cases.push_back({"kv_move", "in place " + describe(shape), prepare});
}

// From one cache to another, of its kind or coded, to slots in no order.
void add_move_case(OpCases& cases, const CacheShape& shape, Codecs becomes) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    CacheShape other = shape;
    other.codecs = becomes;
    const KvView src = make.cache(shape), dst = make.cache(other);
    const int head = src.n_kv_heads - 1;
    const int32_t n = shape.n_slots.back();
    const std::span<int32_t> to = make.permutation(n).first(static_cast<size_t>(n / 2));
    const std::span<int32_t> from = make.random_ints(n / 2, n);
    make.watch_cache(dst);
    op.run = [&backend = setup.backend, src, dst, head, from, to] { backend.kv_move(src, dst, head, from, to); };
  };
  cases.push_back({"kv_move", "to another " + describe(shape) + " to" + codecs_name(becomes), prepare});
}

// All slots from `begin` on become codes, `shift` slots further down: whole pages where shift is 0.
void add_encode_case(OpCases& cases, const CacheShape& shape, Codecs becomes, int32_t begin, int32_t shift) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    CacheShape coded = shape;
    coded.codecs = becomes;
    const KvView src = make.cache(shape), dst = make.cache(coded);
    std::vector<int32_t> slots(static_cast<size_t>(shape.n_slots[0] - begin));
    std::iota(slots.begin(), slots.end(), begin);
    const std::span<int32_t> from = make.ints(slots);
    for (int32_t& slot : slots) slot -= shift;
    const std::span<int32_t> to = make.ints(slots);
    make.watch_cache(dst);
    op.run = [&backend = setup.backend, src, dst, from, to] { backend.kv_move(src, dst, 0, from, to); };
  };
  cases.push_back({"kv_move",
                   numbered("encodes from ", begin) + numbered(" down by ", shift) + " " + describe(shape) + " to" +
                       codecs_name(becomes),
                   prepare});
}

void add_set_case(OpCases& cases, const CacheShape& shape, int32_t slot, bool with_k = true, bool with_v = true) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const KvView kv = make.cache(shape);
    const Tensor k = with_k ? make.input_as(DType::kF32, {shape.head_dim}) : Tensor();
    const Tensor v = with_v ? make.input_as(DType::kF32, {shape.head_dim}) : Tensor();
    make.watch_cache(kv);
    op.run = [&backend = setup.backend, kv, slot, k, v] { backend.kv_set(kv, 1, slot, k, v); };
  };
  cases.push_back({"kv_set",
                   numbered("slot ", slot) + " of " + describe(shape) + (with_k ? "" : " V") + (with_v ? "" : " K"),
                   prepare});
}

void add_coded_cases(OpCases& cases) {
  for (Codecs codecs : {Codecs::kInt8, Codecs::kInt4, Codecs::kK8V4}) {
    for (int64_t d : {32, 64, 72, 80, 96, 128, 256}) {
      if (codecs != Codecs::kInt8 && (d == 32 || d == 96)) continue;   // whole groups, as of 64
      if (codecs == Codecs::kK8V4 && (d == 72 || d == 128)) continue;  // halves of the others
      add_write_case(cases, {.n_slots = {150, 90}, .head_dim = d, .codecs = codecs}, 81, DType::kF32);
      add_read_case(cases, {.n_slots = {70, 131}, .head_dim = d, .codecs = codecs}, true, true);
      add_encode_case(cases, {.n_slots = {131}, .head_dim = d}, codecs, 0, 0);
      add_encode_case(cases, {.n_slots = {131}, .head_dim = d, .codecs = Codecs::kF32}, codecs, 7, 5);
    }
    add_compaction_case(cases, {.n_slots = {301, 20}, .head_dim = 80, .codecs = codecs});
    add_move_case(cases, {.n_slots = {20, 301}, .head_dim = 72, .codecs = codecs}, codecs);
    for (int32_t slot : {0, 65, 127, 130}) {
      add_set_case(cases, {.n_slots = {10, 200}, .head_dim = 96, .codecs = codecs}, slot);
    }
  }
  for (DType source : {DType::kF32, DType::kBF16, DType::kF16}) {
    add_write_case(cases, {.n_slots = {201, 17}, .head_dim = 80, .codecs = Codecs::kMixedInt8}, 17, source);
  }
  add_write_case(cases, {.n_slots = {70, 90}, .head_dim = kMaxHeadDim, .codecs = Codecs::kInt8}, 66, DType::kBF16);
  add_read_case(cases, {.n_slots = {300}, .codecs = Codecs::kMixedInt8}, true, false);
  add_read_case(cases, {.n_slots = {300}, .codecs = Codecs::kMixedInt8}, false, true);
  add_read_case(cases, {.n_slots = {500, 800}, .codecs = Codecs::kBornInt8}, true, true);
  for (Codecs codecs : {Codecs::kBF16, Codecs::kMixedInt8}) {
    add_move_case(cases, {.n_slots = {20, 301}, .head_dim = 72, .codecs = codecs}, Codecs::kInt8);
  }
  add_encode_case(cases, {.n_slots = {700}, .codecs = Codecs::kBornInt8}, Codecs::kInt8, 9, 9);
  add_encode_case(cases, {.n_slots = {700}, .codecs = Codecs::kBornK8V4}, Codecs::kK8V4, 9, 9);
  add_read_case(cases, {.n_slots = {400}, .codecs = Codecs::kMixedAll}, true, true);
}

}  // namespace

void add_kv_cases(OpCases& cases) {
  for (int64_t d : {32, 64, 72, 80, 96, 128}) {
    for (Codecs codecs : {Codecs::kF32, Codecs::kBF16}) {
      add_write_case(cases, {.n_slots = {150, 90}, .head_dim = d, .codecs = codecs}, 81, DType::kF32);
      add_read_case(cases, {.n_slots = {70, 131}, .head_dim = d, .codecs = codecs}, true, true);
    }
  }
  for (DType source : {DType::kF32, DType::kBF16}) {  // the widest heads; rows of another type than the pages
    add_write_case(cases, {.n_slots = {70, 90}, .head_dim = kMaxHeadDim, .codecs = Codecs::kMixed}, 66, source);
  }
  for (int64_t n : {0, 1, 2, 17, 64, 987}) {
    const int32_t rows = static_cast<int32_t>(n);
    add_write_case(cases, {.n_slots = {rows, rows + 61, rows + 64}}, n, DType::kBF16);
  }
  for (DType source : {DType::kF32, DType::kBF16, DType::kF16}) {
    add_write_case(cases, {.n_slots = {200, 17}, .head_dim = 80, .codecs = Codecs::kMixed}, 17, source);
  }
  add_strided_write_case(cases, RowLayout::kStrided);
  add_strided_write_case(cases, RowLayout::kMisaligned);
  add_read_case(cases, {.n_slots = {300}, .codecs = Codecs::kMixed}, true, false);
  add_read_case(cases, {.n_slots = {300}, .codecs = Codecs::kMixed}, false, true);
  for (Codecs codecs : {Codecs::kF32, Codecs::kBF16}) {
    add_compaction_case(cases, {.n_slots = {301, 20}, .head_dim = 80, .codecs = codecs});
    add_move_case(cases, {.n_slots = {20, 301}, .head_dim = 72, .codecs = codecs}, codecs);
  }
  for (int32_t slot : {0, 1, 63, 64, 129}) {
    add_set_case(cases, {.n_slots = {10, 130}, .head_dim = 96, .codecs = Codecs::kMixed}, slot);
  }
  for (Codecs codecs : {Codecs::kMixed, Codecs::kMixedInt8, Codecs::kInt4}) {
    for (int32_t slot : {3, 67}) {
      add_set_case(cases, {.n_slots = {10, 130}, .head_dim = 96, .codecs = codecs}, slot, false, true);
      add_set_case(cases, {.n_slots = {10, 130}, .head_dim = 96, .codecs = codecs}, slot, true, false);
    }
  }
  add_coded_cases(cases);
}

}  // namespace vlcache
