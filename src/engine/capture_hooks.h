// Fills a Capture while a prompt is prefilled: queries are copied, sums are taken in a thin extra pass of the backend.
#pragma once

#include <cstdint>

#include "base/capture.h"
#include "base/layer_hooks.h"
#include "ops/backend.h"

namespace vlcache {

// For one sequence per step. Chunks must be the consecutive pieces of a prompt of n_prompt tokens, all slots kept.
class CaptureHooks final : public LayerHooks {
 public:
  CaptureHooks(Backend& backend, int32_t n_layers, int32_t n_prompt, const AttentionArgs& args, Capture& capture);

  void rows_after(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  void prepare(LayerCapture& layer, int64_t n_heads, int64_t head_dim);

  Backend& backend_;
  int32_t n_prompt_;
  AttentionArgs args_;
  Capture& capture_;
};

}  // namespace vlcache
