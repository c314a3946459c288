// Backend, the contract of all arithmetic: what each op computes, on which shapes. `ops/ref` defines correct results;
// `ops/cpu` is fast and tested against it.
//
// Common rules. n = rows (tokens of all sequences of a step), H heads, Hk kv heads, G = H / Hk, d head_dim. Activations
// are all of one dtype, bf16 or f32 ("compute dtype"); every op reads its inputs in that dtype, computes in f32 and
// rounds once on writing. Rows may be strided (Tensor::stride), inner dimensions are dense. Outputs may alias inputs
// only where stated. Shapes that do not fit are our bug (CHECK); no op throws except on allocation (Error(kMemory)).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/contracts/kv.h"
#include "base/numeric/quant_form.h"
#include "base/tensor.h"
#include "ops/isa.h"

namespace vlcache {

// How x enters products of bf16 with quantised weights: with at least 15 bits for each 32 inputs, or with 8 (one signed
// byte each, 127 the largest magnitude of 32), as other engines have it.
enum class ActivationBits : uint8_t { k15, k8 };

enum class Activation : uint8_t { kNone, kSilu, kGelu, kGeluTanh, kQuickGelu, kRelu };

// Consecutive outputs of a packed matrix that are stored alike, in the backend's layout.
struct WeightSegment {
  int64_t n_out = 0;
  std::optional<QuantForm> form;  // none: values in the compute dtype
  Buffer memory;
  std::vector<int32_t> input_order = {};  // QuantSource's: products take x in this order

  int64_t bytes() const { return memory.bytes() + order_bytes(); }
  int64_t order_bytes() const { return std::ssize(input_order) * int64_t{sizeof(int32_t)}; }
};

// A matrix [n_out, n_in] in the backend's layout, from Backend::pack; or plain rows, put together by hand, for embed.
struct Weight {
  int64_t n_out = 0;
  int64_t n_in = 0;
  DType dtype = DType::kF32;            // of plain rows and of segments without a form
  std::vector<WeightSegment> segments;  // one after the other; empty: plain rows
  Tensor rows;                          // plain rows, possibly in the mapped file (embedding tables)
  Buffer owned;                         // their memory where it is ours
  std::string name;                     // for observers of a model; backends do not read it

  bool packed() const { return !segments.empty(); }
  int64_t bytes() const;
};

// The outputs of packed matrices of one n_in and dtype, one matrix after the other, without a copy.
Weight stack(std::vector<Weight> parts);

// y = act(x W^T + bias) + residual; null parts are left out. `residual` may alias y.
struct Epilogue {
  const Tensor* bias = nullptr;  // [n_out], compute dtype
  Activation act = Activation::kNone;
  const Tensor* residual = nullptr;  // shape and dtype of y
};

// Head sizes that attention and KV pages accept, text and vision alike: even, and at most this (a page of one head is
// then 512 KiB in f32). Configurations with other sizes must be rejected.
inline constexpr int64_t kMaxHeadDim = 1024;

// The rows of one sequence in a step's batch, and what they attend to; their own keys are already written. Without
// `n_after` these are the last `n_rows` slots of every kv head, so row i sees slots [0, n_slots - n_rows + 1 + i).
struct AttentionSeq {
  int32_t row_begin = 0;
  int32_t n_rows = 0;
  KvView kv;
  // [n_rows] the number of slots of every head after row i's own, for scattered rows of one sequence: the row sees [0,
  // n_slots[h] - n_after[i]). At least 0, in any order. Null: n_rows - 1 - i.
  const int32_t* n_after = nullptr;
  // Optional output for one row: its logits [H, logits_stride] f32, scale q.k + slot_bias, -inf where it does not see;
  // slots at and beyond n_slots are not written. With lse, e^(logit - lse) is the attention. No second pass over K.
  float* logits = nullptr;
  int64_t logits_stride = 0;  // at least the largest n_slots
  // Optional output, added to: seen_page_bytes (ops/kv_reads.h), each page once however many rows read it. What
  // sequences read together is divided among them.
  KvReads* reads = nullptr;
};

struct AttentionArgs {
  float scale = 1.0f;   // on the logits, 1/sqrt(d) as a rule
  int32_t window = 0;   // > 0: the query of token p sees slots of tokens > p - window only
  int32_t n_sinks = 0;  // the first n_sinks slots are seen whatever the window ...
  // ... and scored with these queries [n, H, d] (rotated to the capped position); null: q
  const Tensor* q_sinks = nullptr;
  const int32_t* positions = nullptr;  // [n] the queries' tokens; needed with a window when a view has slot_pos
  Tensor lse;  // optional output [n, H] f32: natural log of the sum of exp of the logits, sink_logits included
  // [H] or empty: a logit per query head that joins the softmax's denominator and adds no value; 0: softmax1
  // (arXiv:2309.17453, section 3.3), -inf: none. Unlike the n_sinks first slots it is no slot. Source: gpt-oss.
  std::span<const float> sink_logits{};
  // Sequences of one row may read pages that they have in common once for all (AttentionSeq::kv lists the same ids);
  // then the roundings of a row depend on the other sequences.
  bool share = false;
};

// Sums over the attention of a group of queries, for policies. A = softmax over the slots each query sees. Which
// queries is the caller's choice: all that a step computed, or a slice of the last w.
struct AttentionStats {
  // In: how A counts as small. kRowMax: A_ij < threshold * max_j A_ij (VL-Cache). kUniform: A_ij < 1 / slots seen
  // (Scissorhands).
  enum class Rule : uint8_t { kRowMax, kUniform };
  Rule rule = Rule::kRowMax;
  float threshold = 0.01f;
  const int32_t* n_after = nullptr;   // [n_rows] as in AttentionSeq
  const float* row_weight = nullptr;  // [n_rows] factor of a query's A in column_sums and band_sums; null: 1
  int32_t band = 0;                   // slots of band_sums, up to and with the query's own
  Tensor lse;  // [n_rows, H] f32 that attention returned over the same slots: saves computing it again
  // Out, each optional, joined with the values already in it: [H, >= max n_slots] f32, one row per *query* head.
  Tensor column_sums;   // + sum over queries of row_weight_i A_ij
  Tensor band_sums;     // + the same over queries to whose last `band` slots j belongs: any columns and a band together
                        // weigh column_sums of those, band_sums of the others
  Tensor column_max;    // max with A_ij of every query that sees slot j
  Tensor below_counts;  // + queries whose A_ij is small (only slots they see)
  Tensor seen_counts;   // + queries that see slot j
};

// Bidirectional attention within each image: rows [offsets[i], offsets[i + 1]) attend to each other.
struct DenseAttentionArgs {
  float scale = 1.0f;
  std::span<const int32_t> offsets;  // n_images + 1 ascending row numbers, 0 first, n last
  // Optional output [n, H] f32: attention of each image's row 0 (CLS) to every row of the image
  Tensor first_row_probs;
};

// size: the contract of all arithmetic, one function an op.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // The level of its kernels; code beside the backend uses no higher one.
  virtual Isa isa() const { return Isa::kScalar; }
  virtual DType compute_dtype() const = 0;  // bf16 or f32: dtype of all activations and packed weights
  virtual ActivationBits activation_bits() const { return ActivationBits::k15; }

  // ---- weights ----------------------------------------------------------------------------------------------------
  // One matrix [sum of rows, n_in] from `parts` (f32, bf16 or f16, [rows_i, n_in]) stacked in order (fused q,k,v;
  // gate,up).
  virtual Weight pack(std::span<const Tensor> parts) = 0;
  // The same of quantised rows, which keep their form: bit for bit the weights that QuantRows::dequantise gives.
  virtual Weight pack(const QuantSource& rows) = 0;
  // Names the layout of packed matrices for files that hold them: another name for every change of it.
  virtual std::string_view packed_layout() const = 0;
  // Bytes of a segment of n_out outputs in that layout; form none: in the compute dtype.
  virtual int64_t packed_bytes(const std::optional<QuantForm>& form, int64_t n_out, int64_t n_in) const = 0;
  // y [n, n_out] = epilogue(x [n, n_in] W^T). y: compute dtype, or f32 (logits). y must not alias x. Of quantised
  // weights, f32 computes exactly: dequantised in f32. bf16 may round either the weights to bf16 or the rows of x to 15
  // bits for each 32 inputs, which changes the result by less than its own rounding does; with ActivationBits::k8 it
  // rounds x to 8.
  virtual void matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue = {}) = 0;
  // y[i, :] = W[ids[i], :]. W packed (tied embeddings) or plain rows of any float dtype. ids in [0, n_out).
  virtual void embed(std::span<const int32_t> ids, const Weight& w, const Tensor& y) = 0;

  // ---- row-wise ---------------------------------------------------------------------------------------------------
  // y = x / sqrt(mean(x^2) + eps) * w over the last dimension; x, y [n, hidden] or [n, H, d] (per-head norm). y may
  // alias x. As transformers does in bf16: the normalised value is rounded to the compute dtype before the product.
  // arXiv:1910.07467.
  virtual void rms_norm(const Tensor& x, const Tensor& w, float eps, const Tensor& y) = 0;
  // y = (x - mean) / sqrt(var + eps) * w + b over the last dimension, [n, hidden]. y may alias x.
  virtual void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Tensor& y) = 0;
  // y = a + b, all [n, hidden]; y may alias either. b with one row is added to every row.
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& y) = 0;
  // y = factor x, [n, hidden] f32 or bf16. y may be x.
  virtual void scale(const Tensor& x, float factor, const Tensor& y) = 0;
  // y[:, j] = act(gate_up[:, j]) * gate_up[:, f + j]; gate_up [n, 2f], y [n, f].
  virtual void gated_act(const Tensor& gate_up, Activation act, const Tensor& y) = 0;
  // y = act(x), same shape. y may alias x.
  virtual void activate(const Tensor& x, Activation act, const Tensor& y) = 0;
  // y[i, :] = x[rows[i], :] / y[rows[i], :] = x[i, :]. Byte-exact copies, [*, hidden].
  virtual void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) = 0;
  virtual void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y) = 0;
  // y = x in the dtype of y (f32 <-> bf16, f16 -> either), same shape.
  virtual void convert(const Tensor& x, const Tensor& y) = 0;
  // Rotary embedding, halves convention (rotate_half): for c < d/2, y[c] = x[c] cos[c] - x[c + d/2] sin[c],
  // y[c + d/2] = x[c + d/2] cos[c] + x[c] sin[c]. x, y [n, H, d]; cos, sin [n, d/2] f32. y may alias x.
  // arXiv:2104.09864.
  virtual void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y) = 0;

  // ---- mixtures of experts ---------------------------------------------------------------------------------------
  // Of each row of logits [n, E] compute dtype the k largest, largest first, the lowest number first among equal ones:
  // ids [n, k] i32, and their shares of the softmax over all E, divided by the sum of the k, rounded to the compute
  // dtype: weights [n, k] f32. As Qwen3's router in transformers (softmax in f32, norm_topk_prob).
  virtual void route(const Tensor& logits, const Tensor& ids, const Tensor& weights) = 0;
  // y [n, n_out] = x [n, n_in] W_g^T for rows [offsets[g], offsets[g + 1]) of every group g; offsets [weights.size() +
  // 1] ascend from 0 to n. The weights of empty groups are not read. y must not alias x.
  virtual void grouped_matmul(const Tensor& x, std::span<const Weight> weights, std::span<const int32_t> offsets,
                              const Tensor& y) {
    CHECK(offsets.size() == weights.size() + 1 && offsets.front() == 0 && offsets.back() == x.rows());
    for (size_t g = 0; g < weights.size(); ++g) {
      const int32_t begin = offsets[g], end = offsets[g + 1];
      CHECK(begin <= end);
      if (begin < end) matmul(x.slice_rows(begin, end), weights[g], y.slice_rows(begin, end));
    }
  }
  // y[i] = x[i] + sum over j of weights[i, j] rows[at[i, j]], summed in f32 and rounded once. x, y [n, hidden], rows
  // [m, hidden] compute dtype; at [n, k] i32; weights [n, k] f32. y may alias x.
  virtual void combine_rows(const Tensor& x, const Tensor& rows, const Tensor& at, const Tensor& weights,
                            const Tensor& y) = 0;

  // ---- vision -----------------------------------------------------------------------------------------------------
  // pixels [n_images, C, Hpx, Wpx] f32 -> y [n_images * (Hpx/p) * (Wpx/p), C*p*p] compute dtype: the rows a patch
  // convolution of stride p multiplies with its flattened kernel.
  virtual void patchify(const Tensor& pixels, int64_t patch, const Tensor& y) = 0;
  // q, k, v, out [n, H, d]; full attention inside each image.
  virtual void dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const DenseAttentionArgs& args,
                               const Tensor& out) = 0;

  // ---- KV cache ---------------------------------------------------------------------------------------------------
  // Bytes of a page that holds K and V of 64 slots of one head in this backend's layout. Coded pages (is_coded) hold
  // one code row and its scales per slot and head: a slot is encoded alone, whatever its neighbours.
  virtual int64_t kv_page_bytes(KvCodec codec, int64_t head_dim) const = 0;
  // Writes rows of k and v [n_rows, Hk, d] (any float dtype) into the last n_rows slots of every head of `kv`.
  virtual void kv_write(const Tensor& k, const Tensor& v, const KvView& kv) = 0;
  // Reads slots[i] of one head as f32: k, v [slots.size(), d]; either may be empty.
  virtual void kv_read(const KvView& kv, int head, std::span<const int32_t> slots, const Tensor& k,
                       const Tensor& v) = 0;
  // Copies slot `from[i]` of `head` in `src` to slot `to[i]` of `head` in `dst`: bit-exactly between pages of one
  // codec, encoded from a page of values into a coded page. In the order given: src and dst may share pages as long as
  // no slot is overwritten before it is read.
  virtual void kv_move(const KvView& src, const KvView& dst, int head, std::span<const int32_t> from,
                       std::span<const int32_t> to) = 0;
  // Overwrites slot `slot` of `head` with k, v [d] f32 (a merged slot); an empty one stays as it is.
  virtual void kv_set(const KvView& kv, int head, int32_t slot, const Tensor& k, const Tensor& v) = 0;

  // out[i] = sum_j A_ij v_j per query head h (kv head h / G), A = softmax(scale q_i.k_j + slot_bias_j) over the slots
  // row i sees and, with args.sink_logits, over one more logit whose value is 0: out_i = sum_j e^x_ij v_j / (sum_j
  // e^x_ij
  // + e^sink_h). q, out [n, H, d] compute dtype; rows outside all sequences are not written. Sequences run in one
  // batch; work is split by pages, never by sequence. A slot of bias -inf is hidden: no query sees it, and a page of
  // such slots is not read. A query that sees no slot gives 0 and lse -inf (the sink's logit, with one). Softmax in
  // f32, arXiv:2205.14135.
  virtual void attention(const Tensor& q, std::span<const AttentionSeq> seqs, const AttentionArgs& args,
                         const Tensor& out) = 0;
  // o = (e^la oa + e^lb ob) / (e^la + e^lb), lse = log(e^la + e^lb): joins attention over two disjoint sets of slots.
  // oa, ob, o [n, H, d], la, lb, lse [n, H] f32; o may alias oa, lse may alias la. Sink logits belong to neither part:
  // they are merged once, at the end, as a part of ob = 0 and lb = the sink's logit.
  virtual void merge_attention(const Tensor& oa, const Tensor& la, const Tensor& ob, const Tensor& lb, const Tensor& o,
                               const Tensor& lse) = 0;
  // Adds to `stats` what queries q [n_rows, H, d] of one sequence attend to: its last rows, or those placed by
  // stats.n_after. Never materialises [n_rows, n_slots]. window, n_sinks, positions, hidden slots and sink_logits as in
  // attention.
  virtual void attention_stats(const Tensor& q, const KvView& kv, const AttentionArgs& args, AttentionStats& stats) = 0;

  // ---- products of quantised weights ------------------------------------------------------------------------------
  // What matmul needs beside its operands at most to multiply up to n_rows rows with quantised matrices of up to n_in
  // inputs, whatever their form: rows as integers, panels as values, and, `ordered`, rows in the order of a matrix's
  // inputs. It is kept from product to product.
  virtual int64_t quantised_scratch_bytes(int64_t n_rows, int64_t n_in, bool ordered) const = 0;
};

// Activation by the name that `hidden_act` uses: silu, gelu, gelu_pytorch_tanh, gelu_new, quick_gelu, relu. Throws
// Error(kUnsupported) that lists the known names.
Activation activation_from_name(std::string_view name);

}  // namespace vlcache
