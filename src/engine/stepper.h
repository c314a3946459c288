// Stepper: runs the rows of several sequences through the model at once. The only place where model and caches meet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "engine/sequence.h"
#include "model/model.h"

namespace vlcache {

// How many pending tokens of a sequence a step is to compute.
struct StepItem {
  Sequence* sequence = nullptr;
  int32_t n_rows = 0;
  bool all_logits = false;  // logits of every row, not only of a last pending one
};

class Stepper {
 public:
  Stepper(Model& model, KvCodec codec);
  ~Stepper();

  // One step. The result has, per item in order, the logits [n, vocab] f32 of its rows: all of them, the last pending
  // token's, or none (a prefill chunk with more to come). Valid until the next step; may be changed. `hooks` may be
  // null. An Error leaves the sequences' caches unusable: drop them.
  std::span<const Tensor> step(std::span<const StepItem> items, LayerHooks* hooks = nullptr);

 private:
  class CacheAccess;
  void reserve(int64_t n_rows, int64_t n_logit_rows);
  void embed(std::span<const StepItem> items, const Tensor& x);

  Model& model_;
  std::unique_ptr<CacheAccess> access_;
  std::vector<SeqRows> seqs_;
  std::vector<int32_t> ids_, positions_, logit_rows_, image_rows_;
  std::vector<Tensor> results_;
  Buffer x_;       // [n_rows, hidden]
  Buffer logits_;  // [n_logit_rows, vocab] f32
  int64_t row_capacity_ = 0, logit_capacity_ = 0;
};

}  // namespace vlcache
