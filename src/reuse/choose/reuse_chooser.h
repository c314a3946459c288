// ReuseChooser: which tokens of a reused image are recomputed, as a user writes it: `vlcache`, `static:r=0.1`,
// `mpic:k=32`. A new chooser is a class in reuse_chooser.cc, or in looking_choosers.cc if it previews the prompt, and a
// line in the table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/contracts/layer_hooks.h"
#include "ops/backend.h"
#include "reuse/choose/recompute_plan.h"

namespace vlcache {

// Preview: a trial prefill that only the chooser sees, from the first reused token on; discarded before the real one.
struct Preview {
  int32_t first_layer = 0;     // score() is called from this layer on
  int32_t n_layers = 0;        // number of first layers computed; 0: no preview, the first tokens are chosen
  bool reused_tokens = false;  // computed, too; otherwise they are loaded, and all others computed
  // Previews in a row, each of which chooses an equal part of the plan. What one has chosen is recomputed in the next
  // one, and kept: it is not computed again. 1 where reused tokens are computed.
  int32_t n_looks = 1;
};

// A layer of a preview, after the attention of a step.
struct PreviewedLayer {
  Backend& backend;
  int32_t layer = 0;
  const Observed& observed;         // this step's rows; the last view has all tokens up to its last row
  std::span<const int32_t> tokens;  // [n] the reused tokens of all images: indices in the sequence, ascending
  // For those tokens up to the step's last: K rotated to their positions, [n, Hk, d] f32; empty if only loaded tokens
  // are seen.
  Tensor k, v;                // recomputed
  Tensor loaded_k, loaded_v;  // of all n
};

// The scores of the whole preview.
struct PreviewScores {
  std::span<const std::vector<float>> layers;  // [H, n] of each layer; empty: not scored
  std::span<const size_t> images;              // [n] which image each of the n reused tokens belongs to, ascending
  int32_t n_wanted = 0;                        // how many are chosen next
  std::span<const int32_t> chosen = {};        // [n] layers that earlier previews have chosen; empty: this is the first
};

class ReuseChooser {
 public:
  virtual ~ReuseChooser() = default;
  // With resolved parameters: "vlcache:r=0.025".
  virtual std::string name() const = 0;
  // How many of n_tokens each of n_layers recomputes: the first ones of an image, or, with a preview, those with the
  // highest scores of all images together.
  virtual RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const = 0;
  virtual Preview preview(int32_t n_layers) const {
    static_cast<void>(n_layers);
    return {};
  }
  // Adds to `scores` [H, n] f32 of the layer, 0 at first, the evidence of this step for each of seen.tokens. The result
  // must not depend on how a prompt is cut into steps.
  virtual void score(const PreviewedLayer& seen, const Tensor& scores) const {
    static_cast<void>(seen), static_cast<void>(scores);
  }
  // [n] Tokens are chosen by these values, the highest first, except those already chosen: by default the sums over
  // heads and layers.
  virtual std::vector<double> rank(const PreviewScores& seen) const { return sum_scores(seen, /*power=*/1); }

 protected:
  // Sums over heads and layers, of the scores or their squares.
  static std::vector<double> sum_scores(const PreviewScores& seen, int power);
};

using ReuseChooserPtr = std::shared_ptr<const ReuseChooser>;

// Throws Error(kInput), with the nearest name, for an unknown chooser.
ReuseChooserPtr parse_reuse_chooser(std::string_view text);

}  // namespace vlcache
