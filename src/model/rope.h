// RopeTable: cos and sin of rotary embeddings for a step's positions. Every variant (llama3, yarn, ...) is implemented
// in this table and nowhere else.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/position.h"
#include "base/tensor.h"
#include "model/config.h"

namespace vlcache {

class RopeTable {
 public:
  // kDynamic is plain rope: it changes frequencies only beyond the context the model was trained for, where cached keys
  // would be wrong; the engine stops there.
  RopeTable(const RopeConfig& config, int64_t head_dim);

  // cos, sin [positions.size(), head_dim / 2] f32: of position * frequency, times the attention factor, with the
  // component of the position that each frequency has. The product is rounded to f32 first, as transformers does, so
  // that long contexts agree.
  void fill(std::span<const Position> positions, const Tensor& cos, const Tensor& sin) const;

  std::span<const float> frequencies() const { return frequencies_; }  // [head_dim / 2]
  std::span<const RopeAxis> axes() const { return axes_; }             // [head_dim / 2]
  float attention_factor() const { return attention_factor_; }

 private:
  std::vector<float> frequencies_;  // [head_dim / 2] radians per position
  std::vector<RopeAxis> axes_;
  float attention_factor_ = 1.0f;
};

// The tables of a decoder: one for each kind of layers.
class RopeTables {
 public:
  explicit RopeTables(const TextConfig& text);

  int32_t n() const { return static_cast<int32_t>(tables_.size()); }
  const RopeTable& table(int32_t i) const { return tables_[static_cast<size_t>(i)]; }
  int32_t index(int32_t layer) const { return index_[static_cast<size_t>(layer)]; }
  const RopeTable& of(int32_t layer) const { return table(index(layer)); }

 private:
  std::vector<RopeTable> tables_;
  std::vector<int32_t> index_;  // [n_layers]
};

}  // namespace vlcache
