// LoadedImageSource puts images whose KV was computed elsewhere into a prompt: rotated to their positions there, with
// some tokens of each recomputed in the first layers.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/sequence/sequence.h"
#include "model/rope.h"
#include "reuse/choose/recompute_plan.h"
#include "reuse/image/image_kv.h"
#include "reuse/image/image_store.h"

namespace vlcache {

class LoadedImageSource final : public SlotSource, public LayerHooks {
 public:
  // `ropes`: the rotations of the model's keys.
  LoadedImageSource(Backend& backend, const RopeTables& ropes) : backend_(backend), ropes_(ropes) {}

  // The image stands for the pending tokens of `spans`, row by row; these ascend from call to call. Its first tokens
  // are recomputed as `plan` states, which has the model's layers. With a `load`, its layers are waited for.
  void add(const Sequence& sequence, std::span<const ImageSpan> spans, std::shared_ptr<const ImageKv> image,
           const RecomputePlan& plan, std::shared_ptr<ImageLoad> load = nullptr);
  // These tokens ([n_tokens]) of the image that was added last are recomputed in every layer, whatever is chosen.
  void recompute(std::vector<bool> tokens);
  // Of each token of all images, in the order of the sequence, how many of the first layers recompute it. To be called
  // before supply().
  void set_depths(std::span<const int32_t> depths);
  // K and V of tokens that the next steps recompute, up to the next set_depths(), are kept: later they are supplied in
  // the place of loaded ones. A step may be repeated.
  void keep_recomputed();
  // The number (in the order they were added) of the image whose load failed or was not ready, which made the step
  // fail; -1: none.
  int32_t take_missed() { return std::exchange(missed_, -1); }
  bool empty() const { return images_.empty(); }
  // Whether `layer` has K and V of its own.
  bool holds(int32_t layer) const { return images_[0].image->holds(layer); }
  // All images' tokens, ascending.
  std::vector<int32_t> tokens() const;
  // Which image each of them is of, in the order they were added.
  std::vector<size_t> images_of_tokens() const;
  // Supplies the tokens to the sequence. From then on the steps that compute it need these hooks, and both need each
  // other, until the sequence forgets its source.
  void supply(Sequence& sequence);
  // Tokens that `layer` computes, of all images.
  int64_t n_recomputed(int32_t layer) const;

  // K, rotated, and V of `tokens`, which their images must hold in `layer`: [n, Hk, d] compute dtype. Throws Error(kIo)
  // if an image's load has failed, or is so slow that the step had better be repeated.
  void read(int32_t layer, std::span<const int32_t> tokens, const Tensor& k, const Tensor& v);
  void load(int32_t layer, std::span<const int32_t> tokens, const KvView& view) override;
  // Removes the tokens that their images do not hold.
  void leave_out_missing(int32_t layer, std::vector<int32_t>& tokens) override;
  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  struct Placed {
    std::shared_ptr<const ImageKv> image;
    std::shared_ptr<ImageLoad> load;  // null: all of it is in memory
    std::vector<int32_t> depths;      // [n_tokens] first layers that compute the row
    std::vector<bool> always;         // [n_tokens], or empty: all layers do

    void set_depth(int32_t row, int32_t depth);
  };
  // Consecutive rows of an image in the prompt.
  struct Piece {
    size_t image;
    int32_t begin, end;  // tokens
    int32_t first_row;   // of the image
    struct Rotation {
      std::vector<float> cos, sin;  // [end - begin, d / 2]
    };
    std::vector<Rotation> rotations;  // by index of the rope
  };
  // What was recomputed of some tokens, in the layers that recomputed them.
  struct Kept {
    struct Rows {
      Buffer k, v;  // [tokens, Hk, d] compute dtype, K rotated
    };
    std::vector<int32_t> tokens, depths;  // ascending; and their depths
    std::vector<Rows> layers;             // empty before the layer's step
  };
  void keep_rows(int32_t layer, const Observed& observed);
  // Replaces rows of `tokens` that were kept in the layer.
  void read_kept(int32_t layer, std::span<const int32_t> tokens, const Tensor& k, const Tensor& v) const;
  const Piece* find(int32_t token) const;  // null: no image's
  int32_t depth(const Piece& piece, int32_t token) const;
  // The image of a piece, once it has the layer.
  const ImageKv& loaded(const Piece& piece, int32_t layer);

  Backend& backend_;
  const RopeTables& ropes_;
  std::vector<Placed> images_;
  std::vector<Piece> pieces_;
  std::vector<Kept> kept_;  // of different tokens
  bool keeps_ = false;      // what is recomputed is added to the last of them
  int32_t missed_ = -1;
  Buffer k_, v_;  // scratch of load()
};

}  // namespace vlcache
