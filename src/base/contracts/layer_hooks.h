// Defines the interfaces a forward pass calls layer by layer: where K and V are stored, what a layer attends to, which
// rows continue.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/kv.h"
#include "base/tensor.h"

namespace vlcache {

// Rows of a step that are tokens of one sequence, ascending, with no slots supplied by another source between them.
// `seq` numbers the sequences of the step from 0; a sequence's runs lie side by side in the batch, in the order of
// their tokens.
struct RowRun {
  int32_t seq = 0;
  int32_t row_begin = 0;
  int32_t n_rows = 0;
};

// The KV cache as a forward pass sees it; the engine implements it over `cache`.
class KvAccess {
 public:
  virtual ~KvAccess() = default;
  // Makes room for the K and V of `run` in every kv head of `layer`, after the slots that another source supplies for
  // earlier tokens. `tokens` [n_rows] ascending: their indices in the sequence. The view ends with the run's
  // (unwritten) slots, has a length of its own and does not change while the layer is computed, even when more runs are
  // appended. `k`, `v` [n_rows, Hk, d]: the rows' keys before rotation, already rounded to the KV dtype, and values, as
  // a store of position-free keys records them. Throws Error(kMemory) when the pool or a fixed capacity is exhausted.
  virtual KvView append(int layer, const RowRun& run, std::span<const int32_t> tokens, const Tensor& k,
                        const Tensor& v) = 0;
  // The run's K and V are written into its view; its attention is next.
  virtual void written(int layer, const RowRun& run) { static_cast<void>(layer), static_cast<void>(run); }
  // Whether another source supplies slots for tokens after `after` and before `before`: a run must be cut there.
  virtual bool supplies(int32_t seq, int32_t after, int32_t before) const {
    static_cast<void>(seq), static_cast<void>(after), static_cast<void>(before);
    return false;
  }
  // How K and V are stored, hence what K is rounded to before rotation.
  virtual KvCodec codec() const = 0;
};

// How queries attend beyond causality (docs/methods.md, `streaming`): always to the first n_sinks slots, at capped
// distance, plus the last `window` tokens. 0, 0: plain causal attention. A model's own sliding window applies as well.
struct AttentionPattern {
  int32_t n_sinks = 0;
  int32_t window = 0;
  bool operator==(const AttentionPattern&) const = default;
};

// What a layer's attention has just computed, for hooks that observe it or choose rows by it. Tensors hold the rows of
// `runs` and are valid during the call only.
struct Observed {
  std::span<const RowRun> runs;
  std::span<const int32_t> tokens;      // [n] indices in their sequences
  std::span<const Position> positions;  // [n]
  std::span<const KvView> views;        // per run: what it attended to
  Tensor q;                             // [n, H, d] rotated queries, compute dtype
  Tensor k;                             // [n, Hk, d] keys before rotation
  Tensor v;                             // [n, Hk, d]
  std::span<const Tensor> scores;      // per run: scaled logits [H, n_slots] f32 where wants_scores() asked, else empty
  Tensor lse;                          // [n, H] f32: exp(score - lse) is the attention
  std::span<const float> sink_logits;  // [H] or empty: of the layer, a part of lse (AttentionArgs)
  float scale = 1.0f;                  // on the logits
  Tensor cos, sin;                     // [n, d / 2] f32: the rotation of every row
  std::span<const float>
      frequencies;                 // [d / 2] of the rotation: radians per position of every pair of halves' elements
  std::span<const RopeAxis> axes;  // [d / 2] and the component of the position that it multiplies
  int32_t window = 0;              // of the layer, > 0: a query sees tokens > its own - window only
};

// Hooks called per layer; the defaults change nothing and cost nothing. One object may serve a whole step or one
// sequence of it (engine/hooks/hook_dispatcher.h); row and sequence numbers are then relative to what it serves.
class LayerHooks {
 public:
  virtual ~LayerHooks() = default;
  // What `run` attends to in `layer`; `full` is everything the sequence holds there. The returned view must end with
  // the run's own slots (AttentionSeq's rule), and live until the next call. q [n_rows, H, d] rotated, hidden [n_rows,
  // hidden] the layer's normed input.
  virtual KvView view(int layer, const RowRun& run, const Tensor& q, const Tensor& hidden, const KvView& full) {
    static_cast<void>(layer), static_cast<void>(run), static_cast<void>(q), static_cast<void>(hidden);
    return full;
  }
  // Whether Observed::scores must hold the logits of a sequence with one row in this step.
  virtual bool wants_scores(int layer, int32_t seq) const {
    static_cast<void>(layer), static_cast<void>(seq);
    return false;
  }
  // Called after the attention of `layer`. Returns false: all rows continue. True: only the ascending row numbers put
  // into `keep` (empty when called) do; the others leave the step here, before the layer's MLP. Rows whose logits were
  // requested must stay.
  virtual bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
    static_cast<void>(layer), static_cast<void>(observed), static_cast<void>(keep);
    return false;
  }
};

}  // namespace vlcache
