// QuantisedRows: rows of values in a form of `--weights`, chosen as they are read.
#pragma once

#include <atomic>
#include <vector>

#include "base/quant_form.h"
#include "base/tensor.h"

namespace vlcache {

// Changes whenever the same values get other codes.
inline constexpr int kQuantiserVersion = 2;

// The rows of `parts` (f32, bf16 or f16, [rows_i, n_in], aligned), one part after the other. The result depends on the
// values alone, not on the machine.
//   kInt4, kInt6: of each group the scale and minimum of the least squared error among some ranges, each refined by
//   least squares, the best one again with the codes it gives; then those bytes for them whose own codes have the least
//   error.
//   kInt8: the largest magnitude of a group is code 127, as in Q8_0, but codes are the nearest for the f16 scale.
class QuantisedRows : public QuantSource {
 public:
  QuantisedRows(const QuantForm& form, std::vector<Tensor> parts);
  QuantForm form() const override { return form_; }
  int64_t n_out() const override { return n_out_; }
  int64_t n_in() const override { return n_in_; }
  void read(int64_t first, int64_t n, QuantRows& out) const override;
  // Whether no value read so far was infinite or NaN; such a one has no code and is read as 0.
  bool all_finite() const { return all_finite_; }

 private:
  void load(int64_t row, int64_t begin, float* out) const;
  void fit(int64_t first, int64_t n, QuantRows& out) const;

  QuantForm form_;
  std::vector<Tensor> parts_;
  int64_t n_out_ = 0, n_in_ = 0;
  mutable std::atomic<bool> all_finite_{true};
};

}  // namespace vlcache
