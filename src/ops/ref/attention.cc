// Attention over KV pages: softmax in f32, weights not rounded.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/os/threads.h"
#include "ops/kv_reads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"
#include "ops/ref/slot_logits.h"

namespace vlcache {
namespace {

void check_sequences(const Tensor& q, std::span<const AttentionSeq> seqs, int64_t n_kv_heads) {
  for (const AttentionSeq& seq : seqs) {
    CHECK(seq.row_begin >= 0 && seq.n_rows >= 0 && seq.row_begin + seq.n_rows <= q.rows());
    CHECK(seq.kv.n_kv_heads == n_kv_heads && seq.kv.head_dim == q.dim(2));
    CHECK(seq.logits == nullptr || seq.n_rows == 1);
  }
}

// All queries of one sequence that share a kv head.
void attend_head(const Tensor& q, const AttentionSeq& seq, int head, const AttentionArgs& args, const Tensor& out) {
  if (seq.n_rows == 0) return;
  const int64_t d = q.dim(2), group = q.dim(1) / seq.kv.n_kv_heads;
  FormedSlots formed(seq.kv, head);
  SlotQueries queries(q, args, {seq.row_begin, seq.n_rows, seq.n_after});
  SlotWeights a;
  std::vector<float> mixed(static_cast<size_t>(d));
  for (int64_t i = 0; i < seq.n_rows; ++i) {
    const HeadSlots& slots = formed.of(queries.n_causal(i, formed.n_slots()));
    for (int64_t h = head * group; h < (head + 1) * group; ++h) {
      weigh_slots(queries.get(i, h, slots), slots, args, a);
      if (seq.logits != nullptr) {
        CHECK(seq.logits_stride >= slots.n_slots);
        std::copy(a.logits.begin(), a.logits.end(), seq.logits + h * seq.logits_stride);
      }
      std::fill(mixed.begin(), mixed.end(), 0.0f);
      for (int64_t j = 0; j < slots.n_slots; ++j) {
        const float weight = a.weights[static_cast<size_t>(j)];
        if (weight == 0.0f) continue;
        const float* v = slots.v.data() + j * d;
        for (int64_t c = 0; c < d; ++c) mixed[static_cast<size_t>(c)] += weight * v[c];
      }
      const bool nothing = a.total == 0.0f;
      for (float& x : mixed) x = nothing ? 0.0f : x / a.total;
      const int64_t row = seq.row_begin + i;
      store_values(mixed.data(), d, out, row * out.stride + h * d);
      if (!args.lse.empty())
        args.lse.row<float>(row)[h] = nothing ? -std::numeric_limits<float>::infinity() : a.top + std::log(a.total);
    }
  }
}

}  // namespace

void RefBackend::attention(const Tensor& q, std::span<const AttentionSeq> seqs, const AttentionArgs& args,
                           const Tensor& out) {
  if (seqs.empty()) return;
  check_compute(q), check_compute(out);
  const int64_t n_kv_heads = seqs[0].kv.n_kv_heads;
  CHECK(q.rank == 3 && same_shape(q, out) && n_kv_heads > 0 && q.dim(1) % n_kv_heads == 0);
  check_sequences(q, seqs, n_kv_heads);
  if (!args.lse.empty()) {
    CHECK(args.lse.dtype == DType::kF32 && args.lse.rows() == q.rows() && args.lse.row_size() == q.dim(1));
  }
  for (const AttentionSeq& seq : seqs) {
    if (seq.reads != nullptr) seq.reads->bytes += seen_page_bytes(seq, args);
  }
  parallel_for(static_cast<int64_t>(seqs.size()) * n_kv_heads, [&](int64_t task, int) {
    attend_head(q, seqs[static_cast<size_t>(task / n_kv_heads)], static_cast<int>(task % n_kv_heads), args, out);
  });
}

}  // namespace vlcache
