// PreviewHooks shows a chooser, before it chooses, the layers that it requests of a prompt whose images are reused:
// loaded KV beside recomputed KV.
#pragma once

#include <vector>

#include "engine/reuse/loaded_image_source.h"
#include "reuse/choose/reuse_chooser.h"

namespace vlcache {

class PreviewHooks final : public LayerHooks {
 public:
  // Of all images of `images`, which have been placed in `sequence`.
  PreviewHooks(Backend& backend, LoadedImageSource& images, ReuseChooserPtr chooser, const Sequence& sequence,
               int32_t n_layers);

  // Cuts the next runs of the sequence to those before the preview (false), or to the preview's own (true): these must
  // not include the prompt's last token if its logits are not computed.
  bool cut(std::vector<TokenRun>& runs);
  int32_t begin() const { return tokens_.front(); }
  // Whether all tokens of the preview have been computed.
  bool complete(const Sequence& sequence) const { return sequence.n_done() >= end_; }
  // The step that cut() has begun has been computed: its scores count. A failed step is repeated.
  void finish_step() { scores_ = step_scores_; }
  // To be called when the preview is complete. [tokens of all images] of those that it has chosen, how many of the
  // first layers recompute them.
  std::vector<int32_t> choose();
  // Whether another preview follows, of the same tokens; `images` is to recompute and keep what was chosen last.
  bool looks_again() const { return n_looks_ < wanted_.n_looks; }
  // [tokens of all images] layers that compute each for what was chosen so far and for previews.
  const std::vector<int32_t>& computed() const { return computed_; }
  // [tokens of all images] the chooser's scores for all that the preview has seen.
  std::vector<double> scores() const;

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  void compare(int layer, const Observed& observed, PreviewedLayer& seen);

  Backend& backend_;
  LoadedImageSource& images_;
  ReuseChooserPtr chooser_;
  int32_t n_layers_;
  Preview wanted_;
  int32_t end_;  // one past the last token that is seen
  std::vector<int32_t> tokens_;
  RecomputePlan plan_;   // of one preview
  int32_t n_looks_ = 0;  // previews that have chosen
  std::vector<int32_t> computed_;
  std::vector<std::vector<float>> scores_, step_scores_;  // [n_layers] of the previewed layers [H, n]
  // A layer's K and V of the images' tokens, as in PreviewedLayer.
  struct Layer {
    std::vector<float> k, v, loaded_k, loaded_v;
  };
  std::vector<Layer> layers_;  // the previewed ones
  Buffer k_rows_, v_rows_;     // scratch of compare()
};

}  // namespace vlcache
