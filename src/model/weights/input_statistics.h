// InputStatistics: how large the inputs of a model's matrices are, input by input, over the prompts of a calibration;
// the quantiser weighs its errors by it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace vlcache {

class InputStatistics {
 public:
  // Rows x [n, n_in] (bf16 or f32) that `matrix` multiplies; n may be 0. `like`: a matrix that multiplies the rows of
  // all such matrices, of which this one gets a part: an expert's router. All calls of one matrix name the same.
  void add(const std::string& matrix, const Tensor& x, const std::string& like = {});

  // How much the error of a weight counts, by its input: the mean square of that, drawn towards the one of `like`, or
  // else towards the median of all inputs, as if kPriorRows more rows had been seen: an expert of few rows is not
  // judged by chance, and an input that was always zero still counts a little. Empty for a matrix that is not known, or
  // saw nothing but zeros. Throws Error(kInput) if its inputs were infinite or NaN.
  std::vector<float> weights(const std::string& matrix) const;

 private:
  struct Sums {
    std::vector<double> squares;  // [n_in]
    int64_t n_rows = 0;
    std::string like;
  };
  std::map<std::string, Sums> matrices_;
};

}  // namespace vlcache
