// Which tokens of a reused image are computed anew, as a user asks for it: `vlcache`, `static:r=0.1`, `mpic:k=32`. A
// new chooser is a class in reuse_chooser.cc, or in looking_choosers.cc if it looks at the prompt first, and a line in
// the table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/layer_hooks.h"
#include "ops/backend.h"
#include "reuse/recompute_plan.h"

namespace vlcache {

// What of a prompt a chooser wants to see before it chooses: computed once for that, from the first reused token on,
// and forgotten.
struct Preview {
  int32_t first_layer = 0;     // score() is asked from here on
  int32_t n_layers = 0;        // so many first layers are computed; 0: nothing is, the first tokens are chosen
  bool reused_tokens = false;  // of them, too; else they are loaded, and all others computed
};

// A layer of it behind the attention of a step.
struct PreviewedLayer {
  Backend& backend;
  int32_t layer = 0;
  const Observed& observed;            // this step's rows; the last view has all tokens up to its last row
  std::span<const int32_t> tokens;     // [n] the reused tokens of all images: indices in the sequence, ascending
  std::span<const int32_t> positions;  // [n]
  // Of those tokens up to the step's last, K rotated to where they stand, [n, Hk, d] f32; none where only what is
  // loaded is seen.
  Tensor k, v;                // computed anew
  Tensor loaded_k, loaded_v;  // of all n
};

// What all of it has come to.
struct PreviewScores {
  std::span<const std::vector<float>> layers;  // [H, n] of each layer; empty: it was not looked at
  std::span<const size_t> images;              // [n] which image each of the n reused tokens belongs to, ascending
};

class ReuseChooser {
 public:
  virtual ~ReuseChooser() = default;
  // As resolved: "vlcache:r=0.025".
  virtual std::string name() const = 0;
  // How many of n_tokens each of n_layers computes anew: of an image its first ones, or, with a preview, of all images
  // together those with the highest scores.
  virtual RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const = 0;
  virtual Preview preview(int32_t n_layers) const {
    static_cast<void>(n_layers);
    return {};
  }
  // Joins `scores` [H, n] f32 of the layer, 0 at first, with what speaks for each of seen.tokens as far as this step
  // shows it. It may not depend on how a prompt is cut into steps.
  virtual void score(const PreviewedLayer& seen, const Tensor& scores) const {
    static_cast<void>(seen), static_cast<void>(scores);
  }
  // [n] What the tokens are chosen by, the highest first: the sums over heads and layers, unless it says otherwise.
  virtual std::vector<double> rank(const PreviewScores& seen) const { return sum_scores(seen, /*power=*/1); }

 protected:
  // Over heads and layers, of the scores or their squares.
  static std::vector<double> sum_scores(const PreviewScores& seen, int power);
};

using ReuseChooserPtr = std::shared_ptr<const ReuseChooser>;

// Throws Error(kInput), with the nearest name, for what is none.
ReuseChooserPtr parse_reuse_chooser(std::string_view text);

}  // namespace vlcache
