// Stepper runs rows of several sequences through the model at once. It is the only place where model and caches meet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "engine/hooks/hook_dispatcher.h"
#include "engine/sequence/sequence.h"
#include "model/model.h"

namespace vlcache {

// What a step computes of one sequence.
struct StepItem {
  Sequence* sequence = nullptr;
  // Its tokens, ascending: pending ones, or loaded ones that go through some layers themselves until their hooks drop
  // them. Nothing pending may lie before them.
  std::span<const TokenRun> runs;
  bool all_logits = false;  // logits of every pending token, not only of the sequence's last
  // Of image tokens among them: the embeddings by image, empty if all its tokens have been computed. None at all: ids
  // are embedded as they are.
  std::span<const VisionOutput> images;
  LayerHooks* hooks = nullptr;  // besides the policy's own
  bool preview = false;         // the rows are discarded before the policy acts: it sees nothing of them
  // Only these layers. `hidden` [rows, hidden size] compute dtype: the rows' outputs of earlier layers (in, unless the
  // range begins at 0), and of these layers (out, unless it ends with the last). The tokens count as computed after the
  // last layer.
  LayerRange layers;
  Tensor hidden;
};

// A step that failed: every sequence of it is as it was before. `item`: the item at fault, -1 if no single one is.
class StepFailed : public Error {
 public:
  StepFailed(ErrorCode code, const std::string& message, int32_t item) : Error(code, message), item_(item) {}
  int32_t item() const { return item_; }

 private:
  int32_t item_;
};

// Told after every layer of a step: the items that have gone through it together, and the share of their layers that is
// computed. Must not throw.
using LayersDone = FunctionRef<void(std::span<const int32_t> items, double share)>;

// size: the lists of a step and of its current group, which are reused from step to step.
class Stepper {
 public:
  // share_attention: rows of several sequences read pages together that these have in common (AttentionArgs::share).
  Stepper(Model& model, bool share_attention);
  ~Stepper();

  // One step. The result has, per item in order, the logits [n, vocab] f32 of its rows: all of them, the last token's,
  // or none (if more of the prompt or more layers follow). Valid until the next step; may be changed. Sequences whose
  // attention pattern, layer range or KV values differ go through the model one group after the other. Policies have
  // not acted yet (Sequence::apply_policy). Throws StepFailed.
  std::span<const Tensor> step(std::span<const StepItem> items, const LayersDone* layers_done = nullptr);

 private:
  class StepKv;
  void gather(std::span<const StepItem> items, const StepItem& like);
  void run_group(std::span<const StepItem> items, const StepItem& like);
  void embed(std::span<const StepItem> items, const Tensor& x);
  void gather_addends(std::span<const StepItem> items, LayerRange layers);
  void take_hidden(std::span<const StepItem> items, const Tensor& x);
  void leave_hidden(std::span<const StepItem> items, const Tensor& x);
  void forward_all(std::span<const StepItem> items);
  int32_t to_blame() const;

  Model& model_;
  const bool share_attention_;
  std::unique_ptr<StepKv> kv_;
  HookDispatcher hooks_;
  // Of the group that is being computed: its items, their rows.
  std::vector<int32_t> members_;
  std::vector<RowRun> runs_;
  std::vector<int32_t> ids_, tokens_, logit_rows_, image_rows_;
  std::vector<Position> positions_;
  std::vector<int32_t> addend_rows_;
  std::vector<Tensor> addends_;  // by layer, [addend_rows_.size(), hidden] in addend_values_
  Buffer addend_values_;
  std::vector<uint8_t> done_;    // per item: its group is computed
  std::vector<Tensor> results_;  // per item
  std::vector<KvReads> reads_;   // per item, of this step
  std::vector<KvReads> group_reads_;
  Buffer x_;              // [n_rows, hidden]
  Buffer logits_;         // [n_logit_rows, vocab] f32, of all groups
  int64_t n_logits_ = 0;  // returned in this step
  int32_t blame_ = -1;    // the item whose policy is being called
  const LayersDone* layers_done_ = nullptr;
};

}  // namespace vlcache
