// LayeredPrompt holds a prompt that is computed layer by layer, because its policy drops tokens on the way: which
// tokens are left, and their hidden states between steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"
#include "engine/sequence/sequence_tokens.h"
#include "model/step.h"

namespace vlcache {

// Dtype and size of a hidden state.
struct HiddenShape {
  DType dtype = DType::kF32;
  int64_t size = 0;
};

// Layers and hidden states of a step of one sequence, whose tokens are listed apart: see StepItem.
struct StepLayers {
  LayerRange layers;
  Tensor hidden;
};

class LayeredPrompt {
 public:
  // `tokens`, of which layer l computes rows_per_layer[l]: all in the first, never more in a later one. Holds tokens x
  // hidden size x bytes of their dtype, and as much again for the rows of a step.
  LayeredPrompt(TokenRun tokens, std::vector<int32_t> rows_per_layer, const HiddenShape& hidden);

  TokenRun tokens() const { return tokens_; }
  // The next step: at most max_rows rows of a range of layers that all compute the same tokens. Called again before
  // finish_step(), it returns the same again: a step that failed has changed nothing.
  StepLayers next(int32_t max_rows, std::vector<TokenRun>& runs);
  // The step that next() returned has been computed.
  void finish_step();
  // All rows are through all layers.
  bool done() const { return at_end_of_range() && end_layer() == n_layers(); }
  // All rows are through a range, and the policy is to choose which of them continue.
  bool at_cut() const { return at_end_of_range() && end_layer() < n_layers(); }
  int32_t last_layer() const { return end_layer() - 1; }  // of the range
  std::span<const int32_t> rows() const { return rows_; }
  int32_t n_to_keep() const { return rows_per_layer_[static_cast<size_t>(end_layer())]; }
  // `kept`, n_to_keep() of rows(), continue.
  void cut(std::span<const int32_t> kept);
  // Rows computed so far, over all layers, as a share of all that will be computed.
  double share_done() const;
  // Rows that are left to compute, mean over the layers.
  double n_rows_left() const;
  // Of the model's layers, those that the next step computes.
  double share_of_layers() const { return static_cast<double>(end_layer() - begin_layer_) / n_layers(); }

 private:
  int32_t n_layers() const { return static_cast<int32_t>(rows_per_layer_.size()); }
  int32_t end_layer() const;
  bool at_end_of_range() const { return n_rows_done_ == static_cast<int32_t>(rows_.size()); }
  Tensor states(const Buffer& buffer, int32_t begin, int32_t end) const;

  TokenRun tokens_;
  std::vector<int32_t> rows_per_layer_;
  HiddenShape hidden_;
  std::vector<int32_t> rows_;  // tokens that the range computes
  int32_t begin_layer_ = 0;    // of the range
  int32_t n_rows_done_ = 0;    // of the range
  int32_t n_rows_ = 0;         // of the step that next() returned
  Buffer states_;              // [rows] inputs of the range's first layer; outputs of its last one, of rows done
  Buffer step_;                // [rows of a step]
};

}  // namespace vlcache
