// VisionEncoder: vision transformers over the patches of tiles. Their differences are in VisionConfig. Reads
// tiles, returns features of the chosen layers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "model/config.h"
#include "model/images/image_tiles.h"
#include "model/weights/weights.h"
#include "ops/backend.h"

namespace vlcache {

// Attention of the class token, for policies that rank image tokens before the language model (HiRED). Only for
// encoders with a class token.
struct VisionCapture {
  std::vector<int32_t> layers;  // in: layers to capture, each below n_used_layers
  std::vector<Buffer>
      probs;  // out, per entry of `layers`: [n_tiles, rows per tile, H] f32; row 0 of a tile is the class token
};

// Where the encoder writes: rows of all tiles, n = n_tiles * tokens_per_tile (of some cells: their patches), all
// compute dtype.
struct VisionFeatures {
  Tensor main;               // [n, feature_size]
  std::vector<Tensor> taps;  // [n, hidden_size] for each of VisionConfig::tap_layers
};

// What the encoder computes: pixels [n_tiles, n C, h, w] f32, of n = 1 (a still image) or n_frames frames. Of a single
// tile of any grid it may be told which cells (KeptCells) to compute: those left out are seen by no other.
struct VisionInput {
  VisionInput(const Tensor& all, std::span<const int32_t> some = {}) : pixels(all), cells(some) {}
  explicit VisionInput(const ImageTiles& image);

  Tensor pixels;
  std::span<const int32_t> cells;  // ascending; empty: all
};

class VisionEncoder {
  struct Group;  // tiles that run together

 public:
  // All three must outlive the encoder.
  VisionEncoder(const VisionConfig& config, const VisionWeights& weights, Backend& backend);

  // Feature rows per tile of this many pixels. Throws Error(kShape) for a size the encoder does not accept.
  int64_t tokens_per_tile(int64_t height, int64_t width) const;
  // FLOPs of the layers, of `n_tiles` tiles of so many patches.
  double flops(int64_t n_tiles, int64_t n_patches) const;

  // Encodes an image in steps, between which other work may run.
  class Pass {
   public:
    ~Pass();
    Pass(Pass&&) noexcept;
    // Computes one more layer of one group of tiles, or a part of it where a single tile makes a group of many rows.
    // Returns false after the last step, when the features are complete.
    bool step();
    // Of the layers of all tiles.
    double share_done() const;

   private:
    friend VisionEncoder;
    Pass(VisionEncoder& encoder, const VisionInput& input, const VisionFeatures& features, VisionCapture* capture,
         bool tile_by_tile);
    void begin_group();
    void plan_parts();
    void take(int32_t state);
    Tensor of_group(const Tensor& features) const;
    Tensor probs_of(int32_t layer) const;

    VisionEncoder& encoder_;
    const Tensor pixels_;
    const VisionFeatures features_;
    VisionCapture* const capture_;
    int64_t tokens_ = 0, per_group_ = 0;  // of a tile; tiles
    int32_t next_layer_ = 0;
    size_t next_part_ = 0;
    std::unique_ptr<Group> group_;
    Buffer x_;               // [rows of a group, h]
    Buffer qkv_, attended_;  // as the encoder's, of a group of many rows: they are kept between steps
    Buffer cos_, sin_;       // [rows of a group, head_dim / 2] f32
  };
  // input -> `features`; both must outlive the pass. Tiles run in groups, so that the workspace does not grow with
  // their number, or one by one, in shorter steps and with the same result. Throws as tokens_per_tile, and
  // Error(kInput) for a capture of a layer that is not computed or of an encoder without a class token.
  Pass begin(const VisionInput& input, const VisionFeatures& features, VisionCapture* capture = nullptr,
             bool tile_by_tile = false) {
    return {*this, input, features, capture, tile_by_tile};
  }
  void forward(const VisionInput& input, const VisionFeatures& features, VisionCapture* capture = nullptr);

 private:
  struct Part;  // of a layer

  void reserve(int64_t n_rows);
  void embed_tiles(const Group& group);
  void embed_cells(const Group& group);
  void patchify(const Group& group, const Tensor& patches);
  void run_part(int32_t index, const Group& group, const Part& part, const Tensor& class_probs);
  void project_rows(const VisionLayerWeights& w, const Group& group, int64_t begin, int64_t end);
  void attend(int32_t index, const Group& group, int64_t begin, int64_t end, const Tensor& class_probs);
  void feed_rows(const VisionLayerWeights& w, const Group& group, int64_t begin, int64_t end);
  void norm(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) const;
  void take_features(int32_t state, const Group& group, const Tensor& features);
  void gather_features(const Group& group, const Tensor& from, const Tensor& to);
  Tensor position_rows(int64_t grid_rows, int64_t grid_cols);
  int64_t qkv_width() const;
  Tensor rows_of(const Buffer& buffer, int64_t n_rows, int64_t width) const;

  const VisionConfig& config_;
  const VisionWeights& weights_;
  Backend& backend_;
  Buffer class_row_;  // [1, h] class embedding plus its position
  Buffer positions_;  // [grid_rows_ * grid_cols_, h]; of the grid last looked up
  int64_t grid_rows_ = 0, grid_cols_ = 0;
  int64_t capacity_ = 0;  // rows the buffers below hold
  Buffer normed_;         // [n, h]
  Buffer attended_;       // [n, h]
  Buffer qkv_;            // [n, qkv_width()]; of patches before the first layer, else of q, k and v
  Buffer ffn_;            // [n, f], or with gated_mlp [n, 2 f] and then [n, f]
  std::vector<int32_t> feature_rows_;
};

}  // namespace vlcache
