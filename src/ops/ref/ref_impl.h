// RefBackend: the class that make_ref_backend returns. Each group of ops is defined in a file of its own.
#pragma once

#include "ops/ref/ref_backend.h"

namespace vlcache {

// size: Backend's.
class RefBackend : public Backend {
 public:
  explicit RefBackend(DType compute_dtype, ActivationBits activation_bits = ActivationBits::k15);
  std::string_view name() const override { return "ref"; }
  DType compute_dtype() const override { return compute_dtype_; }
  ActivationBits activation_bits() const override { return activation_bits_; }

  // matmul.cc
  Weight pack(std::span<const Tensor> parts) override;
  Weight pack(const QuantSource& rows) override;
  std::string_view packed_layout() const override { return "rows, 1"; }
  int64_t packed_bytes(const std::optional<QuantForm>& form, int64_t n_out, int64_t n_in) const override;
  int64_t quantised_scratch_bytes(int64_t, int64_t, bool) const override { return 0; }
  void matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) override;
  void embed(std::span<const int32_t> ids, const Weight& w, const Tensor& y) override;

  // norm.cc
  void rms_norm(const Tensor& x, const Tensor& w, float eps, const Tensor& y) override;
  void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Tensor& y) override;

  // elementwise.cc
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override;
  void scale(const Tensor& x, float factor, const Tensor& y) override;
  void gated_act(const Tensor& gate_up, Activation act, const Tensor& y) override;
  void activate(const Tensor& x, Activation act, const Tensor& y) override;
  void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) override;
  void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) override;
  void convert(const Tensor& x, const Tensor& y) override;

  // experts.cc
  void route(const Tensor& logits, const Tensor& ids, const Tensor& weights) override;
  void combine_rows(const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                    const Tensor& y) override;

  // rope.cc
  void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y) override;

  // vision.cc
  void patchify(const Tensor& pixels, int64_t patch, const Tensor& y) override;
  void dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const DenseAttentionArgs& args,
                       const Tensor& out) override;

  // kv_pages.cc
  int64_t kv_page_bytes(KvCodec codec, int64_t head_dim) const override;
  void kv_write(const Tensor& k, const Tensor& v, const KvView& kv) override;
  void kv_read(const KvView& kv, int head, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) override;
  void kv_move(const KvView& src, const KvView& dst, int head, std::span<const int32_t> from,
               std::span<const int32_t> to) override;
  void kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v) override;

  // attention.cc, merge_attention.cc, attention_stats.cc
  void attention(const Tensor& q, std::span<const AttentionSeq> seqs, const AttentionArgs& args,
                 const Tensor& out) override;
  void merge_attention(const Tensor& oa, const Tensor& la, const Tensor& ob, const Tensor& lb, const Tensor& o,
                       const Tensor& lse) override;
  void attention_stats(const Tensor& q, const KvView& kv, const AttentionArgs& args, AttentionStats& stats) override;

 private:
  void check_compute(const Tensor& t) const { CHECK(t.dtype == compute_dtype_); }
  // A weight vector (norm, bias) of exactly n elements in the compute dtype, as f32.
  std::vector<float> vector_of(const Tensor& t, int64_t n) const;

  DType compute_dtype_;
  ActivationBits activation_bits_;
};

}  // namespace vlcache
