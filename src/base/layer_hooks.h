// What a forward pass asks of the outside, layer by layer: where K and V go, what a layer attends to, which rows go on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/kv.h"
#include "base/tensor.h"

namespace vlcache {

// The rows of one sequence in a step's batch; `seq` numbers the sequences of the step from 0.
struct SeqRows {
  int32_t seq = 0;
  int32_t row_begin = 0;
  int32_t n_rows = 0;
};

// The KV cache as a forward pass sees it; the engine implements it over `cache`.
class KvAccess {
 public:
  virtual ~KvAccess() = default;
  // Makes room for the K and V of `rows` in every kv head of `layer`. The view ends with those (unwritten) slots and
  // stays valid until the next append of the same layer and sequence. `positions`: of the rows. `k`, `v` [n_rows, Hk,
  // d]: the rows' keys before rotation, already rounded to the KV dtype, and values - what a store of position-free
  // keys records. Throws Error(kMemory) when the pool or a fixed capacity is exhausted.
  virtual KvView append(int layer, const SeqRows& rows, std::span<const int32_t> positions, const Tensor& k,
                        const Tensor& v) = 0;
  // How K and V are stored: what K is rounded to before rotation.
  virtual KvCodec codec() const = 0;
};

// What a layer has just computed, for hooks that choose by it. Tensors hold all rows of the step and die with the call.
struct Observed {
  std::span<const SeqRows> seqs;       // of the rows that went through this layer
  std::span<const int32_t> positions;  // [n]
  std::span<const KvView> views;       // per sequence: what it attended to
  const Tensor& q;                     // [n, H, d] rotated queries, compute dtype
  const Tensor& k;                     // [n, Hk, d] keys before rotation
  const Tensor& v;                     // [n, Hk, d]
  const Tensor& hidden;                // [n, hidden] output of the layer
};

// Two questions per layer; the defaults change nothing and cost nothing.
class LayerHooks {
 public:
  virtual ~LayerHooks() = default;
  // What `rows` attend to in `layer`; `full` is everything the sequence holds there. The answer must end with the rows'
  // own slots (AttentionSeq's rule), and live until the next call. q [n_rows, H, d] rotated, hidden [n_rows, hidden]
  // the layer's normed input.
  virtual KvView view(int layer, const SeqRows& rows, const Tensor& q, const Tensor& hidden, const KvView& full) {
    static_cast<void>(layer), static_cast<void>(rows), static_cast<void>(q), static_cast<void>(hidden);
    return full;
  }
  // Which rows go on to the next layer: `keep` is empty (= all) when called; fill it with ascending row numbers of the
  // batch to drop the others from here on. The last row of a sequence must stay.
  virtual void rows_after(int layer, const Observed& observed, std::vector<int32_t>& keep) {
    static_cast<void>(layer), static_cast<void>(observed), static_cast<void>(keep);
  }
};

}  // namespace vlcache
