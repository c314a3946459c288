// HookDispatcher is one LayerHooks for a whole step: it hands every layer's rows to the hooks of their sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "base/contracts/layer_hooks.h"

namespace vlcache {

class HookDispatcher final : public LayerHooks {
 public:
  // Starts a step without any hooks.
  void begin();
  // `hooks` see the rows of sequence `seq` from here on, as if it were alone in the step (seq 0, its first row row 0).
  // Several hooks of one sequence are called in order: each sees the view that the previous one chose; a row continues
  // if all let it.
  void add(int32_t seq, LayerHooks& hooks) { owners_.push_back({seq, &hooks}); }
  bool any() const { return !owners_.empty(); }
  // The sequence whose hooks were called last: at fault when they throw.
  int32_t last_called() const { return last_called_; }

  KvView view(int layer, const RowRun& run, const Tensor& q, const Tensor& hidden, const KvView& full) override;
  bool wants_scores(int layer, int32_t seq) const override;
  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  struct Owner {
    int32_t seq;
    LayerHooks* hooks;
  };
  bool ask(int layer, int32_t seq, const Observed& own);

  std::vector<Owner> owners_;
  int32_t last_called_ = -1;
  std::vector<RowRun> runs_;
  std::vector<int32_t> kept_, chosen_;
};

}  // namespace vlcache
