// Makes the inputs of op cases: seeded values in any layout, KV caches with any mix of pages.
#pragma once

#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "ops/cases/op_cases.h"

namespace vlcache {

// How the rows of a tensor lie in memory.
enum class RowLayout : uint8_t {
  kDense,
  kStrided,     // a gap after every row, as the q, k, v columns of a fused projection have
  kMisaligned,  // a gap, and a first element not aligned for vector loads
};
std::string_view row_layout_name(RowLayout layout);

// "n=" and 17 make "n=17".
inline std::string numbered(const char* label, int64_t n) { return std::string(label).append(std::to_string(n)); }

// A KV cache of one layer of one sequence for tests.
struct CacheShape {
  std::vector<int32_t> n_slots;  // per kv head
  int64_t head_dim = 64;
  // kMixed: pages alternate between f32 and bf16; kMixedInt8: between f32, bf16 and int8; kMixedAll: between all.
  // kBorn...: bf16, and the pages that the last slot sees as codes (coded_end) exist in both forms.
  enum class Codecs : uint8_t {
    kF32,
    kBF16,
    kInt8,
    kInt4,
    kK8V4,
    kMixed,
    kMixedInt8,
    kMixedAll,
    kBornInt8,
    kBornInt4,
    kBornK8V4
  } codecs = Codecs::kBF16;
  bool slot_bias = false;
  // Slots of bias -inf: one in eight; every other page and one in eight; all of head 0 and one in eight.
  enum class Hidden : uint8_t { kNone, kFew, kPages, kHead } hidden = Hidden::kNone;
  bool slot_pos = false;          // positions with holes, as after compaction
  int32_t fresh_rows = 0;         // the last slots, whose positions have no holes and end at last_position()
  int32_t last_position() const;  // of every head, when slot_pos
};

class OpCaseMaker {
 public:
  OpCaseMaker(const OpSetup& setup, PreparedOp& op)
      : backend_(setup.backend), values_(setup.values), op_(op), random_(setup.seed) {}

  Backend& backend() const { return backend_; }
  PreparedOp& op() const { return op_; }

  // Uniform in [-scale, scale], rounded to the values' dtype, stored in the compute dtype.
  Tensor input(std::initializer_list<int64_t> dims, float scale = 1.0f, RowLayout layout = RowLayout::kDense);
  // An input in a dtype of its own (f32, bf16, f16), rounded to it.
  Tensor input_as(DType dtype, std::initializer_list<int64_t> dims, float scale = 1.0f);
  // All NaN, so that an unwritten element shows. Gaps between rows are watched.
  Tensor output(std::string name, std::initializer_list<int64_t> dims, RowLayout layout = RowLayout::kDense);
  Tensor output_f32(std::string name, std::initializer_list<int64_t> dims);
  Tensor scratch(DType dtype, std::initializer_list<int64_t> dims);
  // Makes t an output of the case.
  void watch(std::string name, const Tensor& t, Agreement agreement);
  // An output that starts as a copy of x, for ops that work in place.
  Tensor in_place(std::string name, const Tensor& x);

  std::span<int32_t> ints(const std::vector<int32_t>& values);
  std::span<int32_t> random_ints(int64_t n, int32_t below);
  std::span<int32_t> permutation(int32_t n);
  const Weight& packed(std::initializer_list<int64_t> part_rows, int64_t n_in);
  // Random codes, and scales that keep weights within about 1. To be added to a case's weights. `order`: of the inputs,
  // as QuantSource has it.
  Weight quantised(const QuantForm& form, int64_t n_out, int64_t n_in, std::span<const int32_t> order = {});
  const Tensor* keep(const Tensor& t) { return &op_.tensors.emplace_back(t); }

  // A filled cache; unused slots of its pages hold NaN.
  KvView cache(const CacheShape& shape);
  // The slots of all heads become outputs; kv_read fetches them after the run.
  void watch_cache(const KvView& kv);

 private:
  float uniform(float scale) { return scale * (static_cast<float>(random_() >> 40) * 0x1p-23f - 1.0f); }
  Tensor allocate(DType dtype, std::initializer_list<int64_t> dims, RowLayout layout);
  void fill(const Tensor& t, float scale, DType rounding);
  // Pools, and pages in them in no order.
  void place_pages(KvView& kv, CacheShape::Codecs codecs);
  // Pages that the last slot of a head sees as codes become codes.
  void encode_born(KvView& kv, KvCodec codec);

  Backend& backend_;
  DType values_;
  PreparedOp& op_;
  std::mt19937_64 random_;
};

}  // namespace vlcache
