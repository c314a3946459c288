#include "engine/hooks/query_moments.h"

#include <algorithm>
#include <cmath>

#include "base/at.h"
#include "base/buffer.h"
#include "base/os/threads.h"
#include "policy/vectors.h"

namespace vlcache {
namespace {

// Mean cosines and sines of the angles position * frequency.
struct Rotation {
  std::vector<float> cos, sin;

  Rotation(const std::vector<float>& frequencies, int32_t position, int32_t n) {
    for (const float frequency : frequencies) {
      double c = 0, s = 0;
      for (int32_t p = position; p < position + n; ++p) {
        const double angle = static_cast<float>(p) * frequency;
        c += std::cos(angle);
        s += std::sin(angle);
      }
      cos.push_back(static_cast<float>(c / n));
      sin.push_back(static_cast<float>(s / n));
    }
  }
  // Rotates x [d], whose elements lie `stride` apart; one half rotates against the other.
  void turn(float* x, int64_t stride) const {
    const auto half = static_cast<int64_t>(cos.size());
    for (int64_t i = 0; i < half; ++i) {
      float &low = x[i * stride], &high = x[(i + half) * stride];
      const float a = low, b = high;
      low = a * cos[at(i)] - b * sin[at(i)];
      high = b * cos[at(i)] + a * sin[at(i)];
    }
  }
};

}  // namespace

void QueryMoments::add(Backend& backend, const Observed& observed, int32_t begin, int32_t end) {
  std::vector<int32_t> rows;
  for (size_t i = 0; i < observed.tokens.size(); ++i) {
    if (begin <= observed.tokens[i] && observed.tokens[i] < end) rows.push_back(static_cast<int32_t>(i));
  }
  if (rows.empty()) return;
  const Tensor& q = observed.q;
  const auto n = std::ssize(rows), half = std::ssize(observed.frequencies);
  n_heads_ = q.dim(1);
  d_ = q.dim(2);
  frequencies_.assign(observed.frequencies.begin(), observed.frequencies.end());
  const int64_t width = n_heads_ * d_;
  const Buffer storage(n * (2 * width + 2 * half) * dtype_bytes(DType::kF32));
  float* memory = reinterpret_cast<float*>(storage.data());
  const Tensor chosen(memory, q.dtype, {n, width}), plain(memory + n * width, DType::kF32, {n, n_heads_, d_});
  const Tensor cos(memory + 2 * n * width, DType::kF32, {n, half}),
      sin(cos.as<float>() + n * half, DType::kF32, {n, half});
  backend.gather_rows(q.view({q.rows(), width}), rows, chosen);
  backend.convert(chosen, plain.view({n, width}));
  for (int64_t i = 0; i < n; ++i) {
    const Position& position = observed.positions[at(rows[at(i)])];
    for (int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(component(position, observed.axes[at(j)])) * frequencies_[at(j)];
      cos.row<float>(i)[j] = std::cos(angle);
      sin.row<float>(i)[j] = -std::sin(angle);  // back
    }
  }
  backend.rope(plain, cos, sin, plain);
  if (n_rows_ == 0) {
    shift_.assign(at(width), 0.0f);
    sums_.assign(at(width), 0.0f);
    products_.assign(at(width * d_), 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < width; ++c) shift_[at(c)] += plain.row<float>(i)[c] / static_cast<float>(n);
    }
  }
  n_rows_ += n;
  parallel_for(n_heads_, [&](int64_t head, int) {
    float *sum = sums_.data() + head * d_, *product = products_.data() + head * d_ * d_;
    const float* shift = shift_.data() + head * d_;
    for (int64_t i = 0; i < n; ++i) {
      float* x = plain.row<float>(i) + head * d_;
      for (int64_t a = 0; a < d_; ++a) sum[a] += x[a] -= shift[a];
      for (int64_t a = 0; a < d_; ++a) add_scaled(x[a], x + a, product + a * d_ + a, d_ - a);
    }
  });
}

void QueryMoments::expect(int32_t position, int32_t n, const Tensor& mean, const Tensor& covariance) const {
  std::fill_n(mean.as<float>(), mean.numel(), 0.0f);
  std::fill_n(covariance.as<float>(), covariance.numel(), 0.0f);
  if (n_rows_ == 0) return;
  const Rotation rotation(frequencies_, position, n);
  const auto count = static_cast<float>(n_rows_);
  for (int64_t head = 0; head < n_heads_; ++head) {
    float *mu = mean.row<float>(head), *cov = covariance.row<float>(head);
    const float *sum = sums_.data() + head * d_, *product = products_.data() + head * d_ * d_;
    for (int64_t a = 0; a < d_; ++a) {
      mu[a] = shift_[at(head * d_ + a)] + sum[a] / count;
      for (int64_t b = a; b < d_; ++b) {
        cov[a * d_ + b] = cov[b * d_ + a] = product[a * d_ + b] / count - sum[a] / count * (sum[b] / count);
      }
    }
    rotation.turn(mu, 1);
    for (int64_t a = 0; a < d_; ++a) rotation.turn(cov + a * d_, 1);  // C R^T
    for (int64_t a = 0; a < d_; ++a) rotation.turn(cov + a, d_);      // R C R^T
  }
}

}  // namespace vlcache
