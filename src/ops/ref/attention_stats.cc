#include <algorithm>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"
#include "ops/ref/slot_logits.h"

namespace vlcache {
namespace {

// Row `head` of an optional output, or null.
float* row_or_null(const Tensor& t, int64_t head) { return t.empty() ? nullptr : t.row<float>(head); }

// Is weight w, e^(logit - top), small?
bool is_small(float w, const SlotWeights& a, const AttentionStats& stats) {
  if (stats.rule == AttentionStats::Rule::kRowMax) return w < stats.threshold * a.largest;
  return w * static_cast<float>(a.n_seen) < a.total;
}

}  // namespace

void RefBackend::attention_stats(const Tensor& q, const KvView& kv, const AttentionArgs& args, AttentionStats& stats) {
  check_compute(q);
  CHECK(q.rank == 3 && q.dim(2) == kv.head_dim && kv.n_kv_heads > 0 && q.dim(1) % kv.n_kv_heads == 0);
  const int64_t group = q.dim(1) / kv.n_kv_heads;
  parallel_for(q.dim(1), [&](int64_t h, int) {
    FormedSlots formed(kv, static_cast<int>(h / group));
    for (const Tensor* t :
         {&stats.column_sums, &stats.band_sums, &stats.column_max, &stats.below_counts, &stats.seen_counts}) {
      CHECK(t->empty() || (t->dtype == DType::kF32 && t->rows() == q.dim(1) && t->row_size() >= formed.n_slots()));
    }
    float* sums = row_or_null(stats.column_sums, h);
    float* band = row_or_null(stats.band_sums, h);
    float* most = row_or_null(stats.column_max, h);
    float* below = row_or_null(stats.below_counts, h);
    float* seen = row_or_null(stats.seen_counts, h);
    SlotQueries queries(q, args, {.n = q.rows(), .n_after = stats.n_after});
    SlotWeights a;
    for (int64_t i = 0; i < q.rows(); ++i) {
      const HeadSlots& slots = formed.of(queries.n_causal(i, formed.n_slots()));
      const SlotQuery query = queries.get(i, h, slots);
      weigh_slots(query, slots, args, a);
      const float row_weight = stats.row_weight != nullptr ? stats.row_weight[i] : 1.0f;
      for (int64_t j = 0; j < slots.n_slots; ++j) {
        if (!sees(query, slots, args, j)) continue;
        const float w = a.weights[static_cast<size_t>(j)];
        if (sums != nullptr) sums[j] += row_weight * (w / a.total);
        if (band != nullptr && j >= query.n_causal - stats.band) band[j] += row_weight * (w / a.total);
        if (most != nullptr) most[j] = std::max(most[j], w / a.total);
        if (below != nullptr && is_small(w, a, stats)) below[j] += 1.0f;
        if (seen != nullptr) seen[j] += 1.0f;
      }
    }
  });
}

}  // namespace vlcache
