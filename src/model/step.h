// One step of a decoder: the rows of a batch of sequences in, logits out.
#pragma once

#include <cstdint>
#include <span>

#include "base/layer_hooks.h"

namespace vlcache {

// How queries attend beyond causality (METHODS.md, `streaming`): the first n_sinks slots always, at capped distance,
// plus the last `window` tokens. 0, 0: plain causal attention. A model's own sliding window applies besides.
struct AttentionPattern {
  int32_t n_sinks = 0;
  int32_t window = 0;
};

struct StepInput {
  Tensor x;                             // [n, hidden] embeddings in compute dtype; overwritten
  std::span<const int32_t> positions;   // [n] of each row's token
  std::span<const SeqRows> seqs;        // cover all rows, in order
  std::span<const int32_t> logit_rows;  // ascending rows whose logits are wanted; each must survive the hooks
  KvAccess* kv = nullptr;
  LayerHooks* hooks = nullptr;  // may be null
  AttentionPattern pattern;
  Tensor logits;  // out: [logit_rows.size(), vocab] f32
};

}  // namespace vlcache
