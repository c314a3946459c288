// QuantisedRows: rows of values in a form of `--weights`, chosen as they are read.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "base/numeric/quant_form.h"
#include "base/tensor.h"

namespace vlcache {

// Changes whenever the same values get other codes, or another form (model/weights/weight_forms.h).
inline constexpr int kQuantiserVersion = 3;

// How far values (f32, bf16 or f16, [n_out, n_in]) are from the grids of 16 that the search for kInt4 finds: of some
// groups of 32 inputs the median of their values' mean distance, in steps of the grid. Values that know of no grid are
// 0.19 to 0.24 from one, those of a file in 4 bits with the ends of each group among them, even if rounded to bf16,
// less than 0.01.
float distance_from_grid(const Tensor& values);

// The rows of `parts` (f32, bf16 or f16, [rows_i, n_in], aligned), one part after the other. The result depends on the
// values alone, not on the machine.
//   kInt4, kInt6: of each group the scale and minimum of the least squared error among some ranges, each refined by
//   least squares, the best one again with the codes it gives; then those bytes for them whose own codes have the least
//   error.
//   kInt8: the largest magnitude of a group is code 127, as in Q8_0, but codes are the nearest for the f16 scale.
// input_weights [n_in], not negative: what a squared error counts by its input (its mean square, for the least error of
// the product). Only those of one group are compared with each other: the least one counts as kLeastWeight of the
// largest at least. Empty: all count alike. kInt8 does not depend on them.
class QuantisedRows : public QuantSource {
 public:
  static constexpr float kLeastWeight = 1e-4f;  // below it, f32 sums of a group would be of the largest input alone
  QuantisedRows(const QuantForm& form, std::vector<Tensor> parts, std::span<const float> input_weights = {});
  QuantForm form() const override { return form_; }
  int64_t n_out() const override { return n_out_; }
  int64_t n_in() const override { return n_in_; }
  void read(int64_t first, int64_t n, QuantRows& out) const override;
  // Whether no value read so far was infinite or NaN; such a one has no code and is read as 0.
  bool all_finite() const { return all_finite_; }

 private:
  void load(int64_t row, int64_t begin, float* out) const;
  template <bool kWeighed>
  void fit(int64_t first, int64_t n, QuantRows& out) const;

  QuantForm form_;
  std::vector<Tensor> parts_;
  std::vector<float> input_weights_;  // [n_groups, group] of a mean of 1 in each group; or empty
  int64_t n_out_ = 0, n_in_ = 0;
  mutable std::atomic<bool> all_finite_{true};
};

}  // namespace vlcache
