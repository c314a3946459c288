// Defines one step of a decoder: its input, the rows of a batch of sequences, and its output, logits.
#pragma once

#include <cstdint>
#include <span>

#include "base/contracts/layer_hooks.h"
#include "base/function_ref.h"

namespace vlcache {

// Layers [begin, end) of the decoder.
struct LayerRange {
  int32_t begin = 0;
  int32_t end = INT32_MAX;  // or beyond the last: all
  bool operator==(const LayerRange&) const = default;
};

struct StepInput {
  // [n, hidden] compute dtype: embeddings, or the output of the layers before the range. Overwritten; if the range ends
  // before the last layer, with the hidden states of all rows that were not dropped.
  Tensor x;
  // DeepStack (arXiv:2406.04334): addends[l] [addend_rows.size(), hidden] compute dtype is added to the output of layer
  // l, at the rows of this step that the ascending addend_rows name. Rows that were dropped before get none.
  std::span<const int32_t> addend_rows;
  std::span<const Tensor> addends;
  std::span<const int32_t> tokens;      // [n] index of each row's token in its sequence
  std::span<const Position> positions;  // [n]
  std::span<const RowRun> runs;         // cover all rows, in order
  std::span<const int32_t> logit_rows;  // ascending rows whose logits are computed; none unless the range has the last
                                        // layer
  KvAccess* kv = nullptr;
  // Out, added to: what attention reads of each sequence's KV (AttentionSeq::reads), by RowRun::seq. May be empty.
  std::span<KvReads> kv_reads;
  bool share_attention = false;  // AttentionArgs::share
  LayerHooks* hooks = nullptr;   // may be null
  // Called after every layer with the share of the range that is computed; must not throw. May be null.
  const FunctionRef<void(double share)>* after_layer = nullptr;
  AttentionPattern pattern;
  LayerRange layers;
  Tensor logits;  // out: [logit_rows.size(), vocab] f32
};

}  // namespace vlcache
