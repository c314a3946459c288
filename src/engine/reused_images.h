// Images whose KV was computed elsewhere, put into a prompt: rotated to where they stand there, the first tokens of
// each computed anew as a plan says.
#pragma once

#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "model/rope.h"
#include "reuse/image_kv.h"
#include "reuse/recompute_plan.h"

namespace vlcache {

class ReusedImages final : public SlotSource, public LayerHooks {
 public:
  // The rotation of the model's keys; `plan` has the model's layers.
  ReusedImages(Backend& backend, const RopeTable& rope, RecomputePlan plan);

  // Pending tokens [begin, begin + n_tokens) of the sequence are the image's, ascending from call to call.
  void add(const Sequence& sequence, int32_t begin, std::shared_ptr<const ImageKv> image);
  // Takes the sequence's tokens over. From then on the steps that compute it need these hooks, and both need each
  // other.
  void supply(Sequence& sequence);
  // Tokens that `layer` computes, of all images.
  int64_t n_recomputed(int32_t layer) const;

  void load(int32_t layer, const RunTokens& tokens, const KvView& view) override;
  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  struct Placed {
    int32_t begin;
    std::shared_ptr<const ImageKv> image;
    std::vector<float> cos, sin;  // [n_tokens, d / 2]
    int32_t n_tokens() const { return image->n_tokens(); }
  };
  const Placed& at(int32_t token) const;

  Backend& backend_;
  const RopeTable& rope_;
  RecomputePlan plan_;
  std::vector<Placed> images_;
  Buffer k_, v_;  // rows on their way
};

}  // namespace vlcache
