// Computes the cpu backend's attention over pages of K and V: prefill, decode, vision, and the sums that policies
// request.
//
// One kernel shape serves all: a tile of query rows (the G query heads of a kv head x some tokens) against one page of
// 64 slots, with online softmax, so that every byte of K and V is read once for all heads of its group. README.md draws
// it. See Backend in ops/backend.h for shapes and formulas; kv_pages.h for what a page looks like inside.
#pragma once

#include <memory>
#include <span>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"

namespace vlcache::cpu {

class PageSharing;
class TileRunner;

// Scratch memory of the functions below and the kernels they use. Owned by the backend and used by one call at a time;
// it grows to what the largest call so far needed, so that a decode step allocates nothing.
class AttentionWorkspace {
 public:
  // byte_dots: with products of bytes, which the CPU must have (cpu_features.h).
  AttentionWorkspace(Isa isa, bool byte_dots);
  ~AttentionWorkspace();
  AttentionWorkspace(const AttentionWorkspace&) = delete;
  AttentionWorkspace& operator=(const AttentionWorkspace&) = delete;

  int64_t bytes() const;  // held at the moment, for the memory report

  // For the files of this folder.
  TileRunner& runner() { return *runner_; }
  PageSharing& sharing() { return *sharing_; }

 private:
  std::unique_ptr<TileRunner> runner_;
  std::unique_ptr<PageSharing> sharing_;
};

void attention(AttentionWorkspace& workspace, const Tensor& q, std::span<const AttentionSeq> seqs,
               const AttentionArgs& args, const Tensor& out);
void attention_stats(AttentionWorkspace& workspace, const Tensor& q, const KvView& kv, const AttentionArgs& args,
                     AttentionStats& stats);

// The tensors of dense_attention: q, k, v, out [n, H, d], compute dtype; rows may be strided.
struct DenseTensors {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& out;
};
void dense_attention(AttentionWorkspace& workspace, const DenseTensors& tensors, const DenseAttentionArgs& args);

// Two partial results of attention over disjoint slots: values [n, H, d] (bf16 or f32) and lse [n, H] f32.
struct AttentionPart {
  const Tensor& o;
  const Tensor& lse;
};
// sum = a + b; sum.o may alias a.o, sum.lse may alias a.lse.
void merge_attention(const AttentionPart& a, const AttentionPart& b, const AttentionPart& sum);

}  // namespace vlcache::cpu
