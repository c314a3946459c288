// Vision transformers: CLIP (LLaVA) and SigLIP as Idefics3 uses it. Tiles in, features of the chosen layers out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace vlcache {

// Attention of the class token, for policies that rank image tokens before the language model (HiRED). kClip only.
struct VisionCapture {
  std::vector<int32_t> layers;  // in: layers to capture, each below n_used_layers
  std::vector<Buffer> probs;    // out, per layer: [n_tiles, tokens per tile, H] f32, the class token's own row included
};

class VisionEncoder {
 public:
  VisionEncoder(const VisionConfig& config, const VisionWeights& weights, Backend& backend);

  // Rows of features one tile of this many pixels gives. Throws Error(kShape) for a size the encoder cannot take.
  int64_t tokens_per_tile(int64_t height, int64_t width) const;

  // pixels [n_tiles, C, h, w] f32 -> features [n_tiles * tokens_per_tile, feature_size] compute dtype. Tiles run in
  // groups, so that the workspace does not grow with their number.
  void forward(const Tensor& pixels, const Tensor& features, VisionCapture* capture = nullptr);

 private:
  void reserve(int64_t n_rows, int64_t n_patches);
  void embed_tiles(const Tensor& pixels, const Tensor& x);
  void layer(int32_t index, const Tensor& x, std::span<const int32_t> offsets, const Tensor& probs);
  void take_features(int32_t state, const Tensor& x, int64_t n_tiles, const Tensor& features);
  std::vector<int32_t> position_ids(int64_t rows, int64_t cols) const;
  Tensor position_rows(int64_t rows, int64_t cols);

  const VisionConfig& config_;
  const VisionWeights& weights_;
  Backend& backend_;
  Buffer class_row_;  // [1, h] class embedding plus its position
  Buffer positions_;  // [rows * cols, h] for the grid below; kSiglip
  int64_t position_rows_ = 0, position_cols_ = 0;
  int64_t capacity_ = 0, patch_capacity_ = 0;
  Buffer x_, normed_, attended_;  // [n, h]
  Buffer qkv_;                    // [n, 3 h]
  Buffer ffn_;                    // [n, f]
  Buffer patches_;                // [n, C p p]
};

}  // namespace vlcache
