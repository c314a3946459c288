// Computes the logits of one query over one head's slots, and decides which slots it sees, for attention and its
// statistics alike.
#pragma once

#include <limits>
#include <vector>

#include "ops/backend.h"
#include "ops/ref/kv_pages.h"

namespace vlcache {

// One query of one head.
struct SlotQuery {
  const float* q = nullptr;        // [d]
  const float* q_sinks = nullptr;  // [d], scores the first n_sinks slots
  int64_t n_causal = 0;            // slots [0, n_causal) were written at or before the query; may be negative
  int64_t position = 0;            // where the window ends
  float sink = -std::numeric_limits<float>::infinity();  // AttentionArgs::sink_logits of its head
};

// Some rows of q, and their places among the slots.
struct SlotRows {
  int64_t begin = 0;  // row of q, q_sinks and positions that belongs to the first query
  int64_t n = 0;
  const int32_t* n_after = nullptr;  // as in AttentionSeq
};

// The slots of a head in the forms that a row sees (coded_end), loaded again where these differ from the last row's.
class FormedSlots {
 public:
  FormedSlots(const KvView& kv, int head) : kv_(kv), head_(head) {}
  int64_t n_slots() const { return kv_.n_slots[head_]; }
  const HeadSlots& of(int64_t n_causal);

 private:
  const KvView& kv_;
  int head_;
  int32_t end_ = 0;  // slots_ has pages [1, end_) as codes; 0: nothing is loaded
  HeadSlots slots_;
};

// The queries [n_rows, H, d] of a view, one at a time.
class SlotQueries {
 public:
  SlotQueries(const Tensor& q, const AttentionArgs& args, const SlotRows& rows);
  // Slots [0, n) were written at or before query i, of a head with n_slots.
  int64_t n_causal(int64_t i, int64_t n_slots) const;
  // Query `i` of query head `head`; the pointers stay valid until the next call.
  SlotQuery get(int64_t i, int64_t head, const HeadSlots& slots);

 private:
  const Tensor& q_;
  const AttentionArgs& args_;
  SlotRows rows_;
  std::vector<float> query_, sink_query_;
};

// Whether the slot is within the query's limit and window, and not hidden.
bool sees(const SlotQuery& query, const HeadSlots& slots, const AttentionArgs& args, int64_t slot);

// weights[j] = e^(logit_j - top) for slots that the query sees, 0 for others.
struct SlotWeights {
  std::vector<float> logits;   // [n_slots], -inf where not seen
  std::vector<float> weights;  // [n_slots]
  float top = 0.0f;            // largest logit, the sink's included; -inf when nothing is seen and there is no sink
  float largest = 0.0f;        // largest weight
  float total = 0.0f;          // sum of the weights and the sink's
  int64_t n_seen = 0;
};
void weigh_slots(const SlotQuery& query, const HeadSlots& slots, const AttentionArgs& args, SlotWeights& result);

}  // namespace vlcache
