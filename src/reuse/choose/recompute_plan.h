// RecomputePlan: how many of a reused image's tokens each layer recomputes: never more than the layer before, since a
// token that is left out of a layer has no hidden state for the next (VLCache, arXiv:2512.12977). It takes the first
// tokens, unless they have scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

class RecomputePlan {
 public:
  // shares [n_layers] of an image's tokens, in [0, 1], never rising. Throws Error(kInput) otherwise.
  explicit RecomputePlan(std::vector<double> shares);
  static RecomputePlan uniform(int32_t n_layers, double share);

  int32_t n_layers() const { return static_cast<int32_t>(shares_.size()); }
  // Number of tokens that `layer` computes of an image of n tokens: ceil(share n).
  int32_t n_tokens(int32_t layer, int32_t n) const;
  // [n] For each token, how many of the first layers compute it: most for the first tokens, or for those with the
  // highest scores [n] (of equals the earlier).
  std::vector<int32_t> depths(int32_t n) const;
  std::vector<int32_t> depths(std::span<const double> scores) const;
  double mean() const;
  // The same with every share multiplied by `factor`, at most 1.
  RecomputePlan scaled(double factor) const;
  const std::vector<double>& shares() const { return shares_; }

 private:
  // The same for tokens in the order in which they are chosen.
  std::vector<int32_t> depths_in(std::span<const int32_t> order) const;

  std::vector<double> shares_;
};

}  // namespace vlcache
