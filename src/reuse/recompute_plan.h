// Which of an image's tokens each layer computes anew where the image's KV is reused: the first ones, ever fewer from
// layer to layer, since a token that is left out of a layer has no hidden state for the next (VLCache,
// arXiv:2512.12977).
#pragma once

#include <cstdint>
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
  double mean() const;

 private:
  std::vector<double> shares_;
};

}  // namespace vlcache
