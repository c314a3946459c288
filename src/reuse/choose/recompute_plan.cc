#include "reuse/choose/recompute_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace vlcache {

RecomputePlan::RecomputePlan(std::vector<double> shares) : shares_(std::move(shares)) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    const std::string where = "reuse plan: layer " + std::to_string(i);
    if (!(shares_[i] >= 0 && shares_[i] <= 1)) {
      throw Error(ErrorCode::kInput, where + ": expected a share between 0 and 1, found " + std::to_string(shares_[i]));
    }
    if (i > 0 && shares_[i] > shares_[i - 1]) {
      throw Error(ErrorCode::kInput, where + ": expected at most the share of the layer before, " +
                                         std::to_string(shares_[i - 1]) + ", found " + std::to_string(shares_[i]));
    }
  }
}

RecomputePlan RecomputePlan::uniform(int32_t n_layers, double share) {
  return RecomputePlan(std::vector<double>(static_cast<size_t>(n_layers), share));
}

int32_t RecomputePlan::n_tokens(int32_t layer, int32_t n) const {
  constexpr double kSlack = 1e-9;  // 0.1 of 30 are 3, not 4
  return std::min(n, static_cast<int32_t>(std::ceil(shares_[static_cast<size_t>(layer)] * n - kSlack)));
}

std::vector<int32_t> RecomputePlan::depths_in(std::span<const int32_t> order) const {
  std::vector<int32_t> depths(order.size(), 0);
  for (int32_t layer = 0; layer < n_layers(); ++layer) {
    const int32_t n = n_tokens(layer, static_cast<int32_t>(order.size()));
    for (const int32_t token : order.first(static_cast<size_t>(n))) depths[static_cast<size_t>(token)] = layer + 1;
  }
  return depths;
}

std::vector<int32_t> RecomputePlan::depths(int32_t n) const {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return depths_in(order);
}

std::vector<int32_t> RecomputePlan::depths(std::span<const double> scores) const {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int32_t token) { return scores[static_cast<size_t>(token)]; });
  return depths_in(order);
}

RecomputePlan RecomputePlan::scaled(double factor) const {
  std::vector<double> shares = shares_;
  for (double& share : shares) share *= factor;
  return RecomputePlan(std::move(shares));
}

double RecomputePlan::mean() const {
  return std::accumulate(shares_.begin(), shares_.end(), 0.0) /
         static_cast<double>(std::max<size_t>(1, shares_.size()));
}

}  // namespace vlcache
