// CodeRows: matrices of codes in one form, and with one order of inputs, one after the other, as one matrix.
#pragma once

#include <vector>

#include "base/numeric/quant_form.h"

namespace vlcache {

// Where row `row` of heads of `size`, whose rows (2c, 2c + 1) become c and c + size / 2, comes from.
int64_t row_before_pairing(int64_t row, int64_t size);

class CodeRows : public QuantSource {
 public:
  struct Part {
    const QuantSource* codes;
    int64_t pairs = 0;  // as of WeightLoader::matrix
  };
  explicit CodeRows(std::vector<Part> parts);
  QuantForm form() const override { return parts_[0].codes->form(); }
  int64_t n_out() const override { return n_out_; }
  int64_t n_in() const override { return parts_[0].codes->n_in(); }
  void read(int64_t first, int64_t n, QuantRows& out) const override;
  std::span<const int32_t> input_order() const override { return parts_[0].codes->input_order(); }

 private:
  std::vector<Part> parts_;
  int64_t n_out_ = 0;
};

}  // namespace vlcache
