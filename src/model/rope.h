// RopeTable: cos and sin of rotary embeddings for a step's positions. Every variant (llama3, yarn, ...) is implemented
// in this table and nowhere else.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "model/config.h"

namespace vlcache {

class RopeTable {
 public:
  // kDynamic is plain rope: it changes frequencies only beyond the context the model was trained for, where cached keys
  // would be wrong; the engine stops there.
  RopeTable(const RopeConfig& config, int64_t head_dim);

  // cos, sin [positions.size(), head_dim / 2] f32: of position * frequency, times the attention factor. The product is
  // rounded to f32 first, as transformers does, so that long contexts agree.
  void fill(std::span<const int32_t> positions, const Tensor& cos, const Tensor& sin) const;

  std::span<const float> frequencies() const { return frequencies_; }
  float attention_factor() const { return attention_factor_; }

 private:
  std::vector<float> frequencies_;  // [head_dim / 2] radians per position
  float attention_factor_ = 1.0f;
};

}  // namespace vlcache
