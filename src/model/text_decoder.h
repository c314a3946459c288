// The decoder of Llama, Mistral, Qwen2 and Qwen3: one straight-line forward pass over a batch of sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace vlcache {

class TextDecoder {
 public:
  // All three must outlive the decoder.
  TextDecoder(const TextConfig& config, const TextWeights& weights, Backend& backend);

  // x[i, :] = embedding of ids[i]; x [n, hidden] compute dtype. Throws Error(kInput) for an id outside the vocabulary.
  void embed(std::span<const int32_t> ids, const Tensor& x) const;

  // One step: K and V of every row go to step.kv, logits of step.logit_rows come out; step.x is overwritten.
  // All rows are computed in one piece: cutting long prompts into chunks is the caller's job. Allocates only when a
  // step has more rows than any before it.
  //
  // Streaming pattern: windowed keys keep their own rotation, and so do the sinks, at their true positions 0 .. n_sinks
  // - 1. What is capped is the query's position towards the sinks, min(position, n_sinks + window - 1): the distance to
  // sink j is then n_cache - 1 - j of METHODS.md without rotating any stored key again.
  void forward(const StepInput& step);

  // Bytes of workspace for steps of n_rows.
  static int64_t workspace_bytes(const TextConfig& config, DType compute_dtype, int64_t n_rows);

 private:
  void reserve(int64_t n_rows);
  void begin_step(const StepInput& step);
  void fill_rope(const AttentionPattern& pattern);
  void attend(int layer, const StepInput& step);
  void round_keys(const Tensor& k, KvCodec codec);
  void mix_and_feed(int layer);  // output projection, then the MLP
  void ask_rows(int layer, const StepInput& step);
  void keep_logit_rows(const StepInput& step);
  void keep_rows();
  void write_logits(const StepInput& step);
  Tensor rows_of(const Buffer& buffer, int64_t width) const;
  Tensor table_of(const Buffer& buffer) const;

  const TextConfig& config_;
  const TextWeights& weights_;
  Backend& backend_;
  RopeTable rope_;
  float scale_;

  // The rows still alive in this step, in order.
  int64_t n_ = 0;
  Tensor x_;                        // [n, hidden] residual stream
  std::vector<int32_t> row_ids_;    // [n] row number in the step's input
  std::vector<int32_t> positions_;  // [n]
  std::vector<SeqRows> seqs_;
  std::vector<KvView> views_;  // per sequence, of the current layer
  std::vector<AttentionSeq> attention_seqs_;
  std::vector<int32_t> keep_;
  std::vector<int32_t> sink_positions_;

  int64_t capacity_ = 0;  // rows the buffers below hold
  Buffer x_spare_[2];     // [n, hidden] the residual stream after rows were dropped, in turns
  Buffer normed_;         // [n, hidden]
  Buffer qkv_;            // [n, (H + 2 Hk) d]
  Buffer k_rotated_;      // [n, Hk, d]
  Buffer k_rounded_;      // [n, Hk, d] in the KV dtype; only where that differs from the compute dtype
  Buffer q_sinks_;        // [n, H, d]; streaming only
  Buffer attended_;       // [n, H d]
  Buffer gate_up_;        // [n, 2 f]
  Buffer act_;            // [n, f]
  Buffer cos_, sin_;      // [n, d / 2] f32
  Buffer cos_sinks_, sin_sinks_;
};

}  // namespace vlcache
