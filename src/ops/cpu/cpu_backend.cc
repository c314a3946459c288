#include "ops/cpu/cpu_backend.h"

#include "base/error.h"
#include "ops/cpu/attention/attention.h"
#include "ops/cpu/attention/kv_pages.h"
#include "ops/cpu/limits/limits.h"
#include "ops/cpu/matmul/matmul.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/quant/quant_panel.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/row_ops.h"

namespace vlcache {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(DType compute_dtype, cpu::Isa isa, const cpu::CodeProducts& codes)
      : compute_dtype_(compute_dtype),
        activation_bits_(codes.activation_bits),
        isa_(isa),
        matmul_(isa, compute_dtype, codes),
        attention_(isa, codes.byte_dots) {}

  std::string_view name() const override { return "cpu"; }
  DType compute_dtype() const override { return compute_dtype_; }
  ActivationBits activation_bits() const override { return activation_bits_; }
  Isa isa() const override { return isa_; }

  Weight pack(std::span<const Tensor> parts) override { return cpu::pack(isa_, compute_dtype_, parts); }
  Weight pack(const QuantSource& rows) override { return cpu::pack_quantised(compute_dtype_, rows); }
  std::string_view packed_layout() const override { return cpu::kPackedLayout; }
  int64_t packed_bytes(const std::optional<QuantForm>& form, int64_t n_out, int64_t n_in) const override {
    return cpu::packed_bytes(compute_dtype_, form, n_out, n_in);
  }
  int64_t quantised_scratch_bytes(int64_t n_rows, int64_t n_in, bool ordered) const override {
    return matmul_.quantised_scratch_bytes(n_rows, n_in, ordered);
  }
  void matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) override {
    matmul_.run(x, w, y, epilogue);
  }
  void grouped_matmul(const Tensor& x, std::span<const Weight> weights, std::span<const int32_t> offsets,
                      const Tensor& y) override {
    if (!matmul_.run_groups(x, weights, offsets, y)) Backend::grouped_matmul(x, weights, offsets, y);
  }
  void embed(std::span<const int32_t> ids, const Weight& w, const Tensor& y) override { cpu::embed(isa_, ids, w, y); }

  void rms_norm(const Tensor& x, const Tensor& w, float eps, const Tensor& y) override {
    cpu::rms_norm(isa_, x, w, eps, y);
  }
  void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Tensor& y) override {
    cpu::layer_norm(isa_, x, w, b, eps, y);
  }
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override { cpu::add(isa_, a, b, y); }
  void scale(const Tensor& x, float factor, const Tensor& y) override { cpu::scale(isa_, x, factor, y); }
  void gated_act(const Tensor& gate_up, Activation act, const Tensor& y) override {
    cpu::gated_act(isa_, gate_up, act, y);
  }
  void activate(const Tensor& x, Activation act, const Tensor& y) override { cpu::activate(isa_, x, act, y); }
  void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) override {
    cpu::gather_rows(x, rows, y);
  }
  void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) override {
    cpu::scatter_rows(x, rows, y);
  }
  void convert(const Tensor& x, const Tensor& y) override { cpu::convert(isa_, x, y); }
  void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y) override {
    cpu::rope(isa_, x, cos, sin, y);
  }

  void route(const Tensor& logits, const Tensor& ids, const Tensor& weights) override {
    cpu::route(logits, ids, weights);
  }
  void combine_rows(const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                    const Tensor& y) override {
    cpu::combine_rows(isa_, x, rows, at, weights, y);
  }

  void patchify(const Tensor& pixels, int64_t patch, const Tensor& y) override {
    cpu::patchify(isa_, pixels, patch, y);
  }
  void dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const DenseAttentionArgs& args,
                       const Tensor& out) override {
    cpu::dense_attention(attention_, {q, k, v, out}, args);
  }

  int64_t kv_page_bytes(KvCodec codec, int64_t head_dim) const override { return cpu::kv_page_bytes(codec, head_dim); }
  void kv_write(const Tensor& k, const Tensor& v, const KvView& kv) override { cpu::kv_write(k, v, kv); }
  void kv_read(const KvView& kv, int head, std::span<const int32_t> slots, const Tensor& k, const Tensor& v) override {
    cpu::kv_read(kv, head, slots, k, v);
  }
  void kv_move(const KvView& src, const KvView& dst, int head, std::span<const int32_t> from,
               std::span<const int32_t> to) override {
    cpu::kv_move(src, dst, head, {from, to});
  }
  void kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v) override {
    cpu::kv_set(kv, head, slot, k, v);
  }

  void attention(const Tensor& q, std::span<const AttentionSeq> seqs, const AttentionArgs& args,
                 const Tensor& out) override {
    cpu::attention(attention_, q, seqs, args, out);
  }
  void merge_attention(const Tensor& oa, const Tensor& la, const Tensor& ob, const Tensor& lb, const Tensor& o,
                       const Tensor& lse) override {
    cpu::merge_attention({oa, la}, {ob, lb}, {o, lse});
  }
  void attention_stats(const Tensor& q, const KvView& kv, const AttentionArgs& args, AttentionStats& stats) override {
    cpu::attention_stats(attention_, q, kv, args, stats);
  }

 private:
  DType compute_dtype_;
  ActivationBits activation_bits_;
  cpu::Isa isa_;
  cpu::Matmul matmul_;
  cpu::AttentionWorkspace attention_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(DType compute_dtype, const CpuBackendOptions& options) {
  CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kBF16);
  const cpu::Isa isa = cpu::fastest_isa(options.max_isa);
  const cpu::CodeProducts codes{.byte_dots = options.byte_dots && cpu::has_byte_dots(isa),
                                .activation_bits = options.activation_bits,
                                .word_products = isa == cpu::Isa::kAvx2 && cpu::word_products_pay()};
  return std::make_unique<CpuBackend>(compute_dtype, isa, codes);
}

std::unique_ptr<Backend> make_cpu_backend(DType compute_dtype) { return make_cpu_backend(compute_dtype, {}); }

}  // namespace vlcache
