// Image keep: selects the tokens of an image's KV that matter for any question, when only a part is kept.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "policy/parts.h"
#include "reuse/image/image_kv.h"

namespace vlcache {

// Reduces `all`, which keeps every token, to `form`: in each layer the tokens with the largest scores, mean over its kv
// heads; coded rows are copied. Keys are scored before rotation, so that the result does not depend on where the image
// was recorded.
std::shared_ptr<const ImageKv> keep_best(Backend& backend, const KvShape& shape, const ImageKvForm& form,
                                         const ImageKv& all);

std::shared_ptr<const ImageKv> keep_these(const KvShape& shape, const ImageKvForm& form, const ImageKv& all,
                                          const KeptTokens& kept);

// For scorers that need the image repeated: the policy of a prompt that ends with its one image (image_origin.h). It
// evicts nothing, and reports once which tokens are the best.
class RepeatedImage final : public Policy {
 public:
  using Listener = std::function<void(KeptTokens)>;
  // The image's tokens are the image tokens from first_token on (between tiles there may be text).
  RepeatedImage(const ImageKvForm& form, int32_t first_token, Listener listener);

  std::string name() const override;
  bool evicts() const override { return false; }
  std::vector<CaptureRequest> needs(const PromptShape& prompt) const override { return {scorer_->needs(prompt)}; }
  // Throws Error(kInput) if the image could not be repeated.
  bool plan(const PlanInputs& in, KeepPlan& plan) const override;

 private:
  ImageKvForm form_;
  std::unique_ptr<const TokenScorer> scorer_;
  Listener listener_;
};

}  // namespace vlcache
