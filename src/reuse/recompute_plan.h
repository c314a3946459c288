// How many of a reused image's tokens each layer computes anew: ever fewer from layer to layer, since a token that is
// left out of a layer has no hidden state for the next (VLCache, arXiv:2512.12977). Which ones: the first, unless they
// have scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlcache {

class RecomputePlan {
 public:
  // shares [n_layers] of an image's tokens, in [0, 1], never rising. Throws Error(kInput) for anything else.
  explicit RecomputePlan(std::vector<double> shares);
  static RecomputePlan uniform(int32_t n_layers, double share);

  int32_t n_layers() const { return static_cast<int32_t>(shares_.size()); }
  // Of an image of n tokens, those that `layer` computes: ceil(share n).
  int32_t n_tokens(int32_t layer, int32_t n) const;
  // Of each of n tokens [n], how many of the first layers compute it: of the first tokens most; of those with the
  // highest scores [n] (of equal ones the earlier).
  std::vector<int32_t> depths(int32_t n) const;
  std::vector<int32_t> depths(std::span<const double> scores) const;
  double mean() const;

 private:
  // Of tokens in the order in which they are chosen.
  std::vector<int32_t> depths_in(std::span<const int32_t> order) const;

  std::vector<double> shares_;
};

}  // namespace vlcache
