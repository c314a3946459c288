#include "model/weights/input_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/at.h"
#include "base/error.h"
#include "base/os/threads.h"

namespace vlcache {
namespace {

constexpr double kPriorRows = 8;

template <typename T>
void add_squares(const Tensor& x, std::vector<double>& squares) {
  // By inputs: the order of a sum does not depend on the number of threads.
  parallel_ranges(x.row_size(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = 0; row < x.rows(); ++row) {
      const T* values = x.row<T>(row);
      for (int64_t k = begin; k < end; ++k) {
        const double value = to_float(values[k]);
        squares[at(k)] += value * value;
      }
    }
  });
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

void InputStatistics::add(const std::string& matrix, const Tensor& x, const std::string& like) {
  Sums& sums = matrices_[matrix];
  sums.squares.resize(at(x.row_size()));
  sums.n_rows += x.rows();
  sums.like = like;
  if (x.rows() == 0) return;
  CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  x.dtype == DType::kF32 ? add_squares<float>(x, sums.squares) : add_squares<bf16>(x, sums.squares);
}

std::vector<float> InputStatistics::weights(const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  if (found == matrices_.end()) return {};
  const Sums& own = found->second;
  const auto like = matrices_.find(own.like);
  const Sums& prior = like == matrices_.end() || like->second.n_rows == 0 ? own : like->second;
  if (prior.n_rows == 0) return {};
  CHECK(prior.squares.size() == own.squares.size());
  const double n_prior = static_cast<double>(prior.n_rows), n_own = static_cast<double>(own.n_rows);
  double sum = 0;
  for (const double x : prior.squares) sum += x;
  if (sum == 0) return {};
  // Of many inputs that are mostly zero the median may be zero.
  const double usual = std::max(median(prior.squares), 1e-3 * sum / static_cast<double>(own.squares.size())) / n_prior;
  std::vector<float> weights;
  for (size_t k = 0; k < own.squares.size(); ++k) {
    const double expected = &prior == &own ? usual : prior.squares[k] / n_prior;
    weights.push_back(static_cast<float>((own.squares[k] + kPriorRows * expected) / (n_own + kPriorRows)));
    if (std::isfinite(weights.back())) continue;
    throw Error(ErrorCode::kInput, "calibration: inputs of \"" + matrix + "\" are infinite or not a number");
  }
  return weights;
}

}  // namespace vlcache
