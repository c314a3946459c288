// TextDecoder: the decoder of all language models (families/text.cc): one straight-line forward pass over a batch of
// sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "model/config.h"
#include "model/live_rows.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights/weights.h"
#include "ops/backend.h"

namespace vlcache {

// size: the buffers of a step by name, which are reused from step to step.
class TextDecoder {
 public:
  // All three must outlive the decoder.
  TextDecoder(const TextConfig& config, const TextWeights& weights, Backend& backend);

  // x[i, :] = embedding of ids[i], the residual stream that the first layer reads (TextConfig::residual_scale); x [n,
  // hidden] compute dtype. Throws Error(kInput) for an id outside the vocabulary.
  void embed(std::span<const int32_t> ids, const Tensor& x) const;
  const RopeTables& ropes() const { return ropes_; }
  // Adds the inputs of every product with a layer's matrices to `inputs`, which must outlive its use; null: no longer.
  void observe_inputs(InputStatistics* inputs) { inputs_ = inputs; }

  // Runs one step through step.layers: K and V of every row are stored in step.kv, logits of step.logit_rows are
  // written to step.logits; step.x is overwritten. All rows are computed in one piece: cutting long prompts into chunks
  // is the caller's job. Allocates only when a step has more rows than any before it (scores: more slots).
  //
  // Streaming pattern: windowed keys keep their own rotation, and so do the sinks, at their true positions 0 .. n_sinks
  // - 1. The cap is on the query's position towards the sinks, min(position, n_sinks + window - 1): the distance to
  // sink j is then n_cache - 1 - j of docs/methods.md without rotating any stored key again.
  void forward(const StepInput& step);

  // Bytes of workspace for steps of n_rows.
  static int64_t workspace_bytes(const TextConfig& config, DType compute_dtype, int64_t n_rows);

 private:
  struct Rotation {  // of the live rows, in one kind of layers: [n, d / 2] f32 each
    Buffer cos, sin;
    Buffer cos_sinks, sin_sinks;  // streaming only
  };
  // The projections of one layer, views of the live rows' workspace.
  struct Projected {
    Tensor normed;  // [n, hidden]
    Tensor q;       // [n, H, d] rotated
    Tensor k;       // [n, Hk, d] before rotation, as the KV dtype holds it
    Tensor k_rotated;
    Tensor v;        // [n, Hk, d]
    Tensor q_sinks;  // [n, H, d] rotated to the capped position; streaming only
  };
  void reserve(int64_t n_rows);
  void multiply(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue = {}) const;
  // Rows [expert_ends_[i], expert_ends_[i + 1]) with expert i. like: as InputStatistics::add has it.
  void multiply_experts(const Tensor& x, std::span<const Weight> experts, const Tensor& y,
                        const std::string& like) const;
  void begin_step(const StepInput& step);
  void add_positions();
  // Of the residual stream.
  void norm(const Tensor& w, const Tensor& b, const Tensor& y) const;
  void fill_rope(const AttentionPattern& pattern);
  Projected project(int layer, const StepInput& step);
  void attend(int layer, const StepInput& step);
  void store(int layer, const StepInput& step, const Projected& p);
  void plan_attention(const StepInput& step);
  void want_scores(int layer, LayerHooks& hooks);
  void round_keys(const Tensor& k, KvCodec codec);
  bool choose_rows(int layer, const StepInput& step, const Projected& p, const AttentionArgs& args);
  void keep_rows(int layer, const StepInput& step);
  void mix_and_feed(int layer);  // output projection, then the MLP
  void add_normed(const Tensor& rows, const Tensor& norm);
  void feed_experts(int layer, const Tensor& normed);
  void add_addends(int layer, const StepInput& step);
  void leave(const StepInput& step);
  void write_logits(const StepInput& step);
  Tensor rows_of(const Buffer& buffer, int64_t width) const;
  Tensor table_of(int rope, Buffer Rotation::*which) const;

  const TextConfig& config_;
  const TextWeights& weights_;
  Backend& backend_;
  const TextLayer widest_;
  InputStatistics* inputs_ = nullptr;
  RopeTables ropes_;
  std::vector<Rotation> rotations_;  // by index of the rope

  LiveRows rows_;
  Tensor x_;                             // [n, hidden] residual stream of the live rows
  std::vector<KvView> views_;            // per run, of the current layer
  std::vector<bool> own_view_;           // per run: a hook has chosen it
  std::vector<AttentionSeq> attention_;  // one per run, or one per sequence where its runs can share a call
  std::vector<int32_t> n_after_;         // [n] slots after each row's own
  std::vector<int32_t> keep_, logit_rows_;
  std::vector<Position> sink_positions_;
  std::vector<int32_t> position_ids_;  // [n] rows of the table of learned positions
  std::vector<Tensor> scores_;         // per run

  int64_t capacity_ = 0;  // rows the buffers below hold
  Buffer x_spare_[2];     // [n, hidden] the residual stream after rows were dropped, alternating
  Buffer normed_;         // [n, hidden]
  Buffer qkv_;            // [n, (H + 2 Hk) d]
  Buffer k_rotated_;      // [n, Hk, d]
  Buffer k_rounded_;      // [n, Hk, d] in the KV dtype; only where that differs from the compute dtype
  Buffer q_sinks_;        // [n, H, d]; streaming only
  Buffer attended_;       // [n, H d]
  Buffer lse_;            // [n, H] f32; only for scores
  Buffer score_values_;   // of all runs with scores, [H, n_slots] f32 each
  Buffer gate_up_;        // [n, 2 f]
  Buffer act_;            // [n, f]
  // Of layers with experts, of which each row uses k: rows of experts in the order of these, which gate_up_ and act_
  // have, too.
  Buffer router_logits_;              // [n, E]
  Buffer routed_, routed_weights_;    // [n, k] i32, f32
  Buffer expert_in_, expert_out_;     // [n k, hidden]
  std::vector<int32_t> expert_rows_;  // [n k] row of the step
  std::vector<int32_t> expert_at_;    // [n, k] where a row's results are
  std::vector<int32_t> expert_ends_;  // [E + 1]
};

}  // namespace vlcache
