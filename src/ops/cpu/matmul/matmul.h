// Multiplies with packed weights, by the kernel that is fastest for the number of rows.
#pragma once

#include <span>
#include <vector>

#include "ops/backend.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/matmul/amx_product.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/scratch.h"

namespace vlcache::cpu {

// How codes of quantised weights are multiplied.
struct CodeProducts {
  bool byte_dots = false;  // by dot products of bytes, which the CPU must have (cpu_features.h)
  ActivationBits activation_bits = ActivationBits::k15;
  bool word_products = false;  // on AVX2 without byte_dots, many rows by products of words (limits.h has the rule)
};

// Holds primitives and scratch: one product at a time.
class Matmul {
 public:
  Matmul(Isa isa, DType compute_dtype, const CodeProducts& codes = {});
  ~Matmul();

  // Backend::matmul. x, y and the residual may have strided rows.
  void run(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue);

  // Backend::grouped_matmul as one loop over the codes of all groups. Does nothing and returns false where that is not
  // the way: with values, many rows, or matrices of several forms.
  bool run_groups(const Tensor& x, std::span<const Weight> weights, std::span<const int32_t> offsets, const Tensor& y);

  // The implementations that `run` chooses from for each segment (matmul.cc has the rule). By panels and by codes, a
  // row's result does not depend on the other rows.
  void by_panels(const Tensor& x, const Panels& w, const Tensor& y, const Epilogue& epilogue);
  void by_values(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue);
  void by_codes(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue);

  int64_t scratch_bytes() const;
  // What scratch_bytes() grows to at most by products of up to n_rows rows with quantised matrices of up to n_in
  // inputs, of which some are `ordered`.
  int64_t quantised_scratch_bytes(int64_t n_rows, int64_t n_in, bool ordered) const;

 private:
  void run_segment(const Tensor& x, const Weight& w, const WeightSegment& segment, const Tensor& y,
                   const Epilogue& epilogue);
  int64_t most_coded_rows() const;  // multiplied with codes
  bool in_code_tiles(int64_t n_rows) const;
  bool on_amx(int64_t n_rows) const;
  bool in_blocks(int64_t n_rows) const;
  DType operand_dtype() const;  // of x in products by panels, and of quantised weights as values
  void by_code_tiles(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue);
  // Rows of x as integers, `group` at a time, in `memory` of CodedRows::bytes.
  static CodedRows coded(QuantIsa isa, const Tensor& x, const CodedAs& as, int64_t group, std::byte* memory);
  // A product with codes that is ready to be multiplied, panel by panel.
  struct CodedProduct;
  CodedProduct prepare(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue,
                       std::byte* memory) const;
  void multiply(const CodedProduct& product, int64_t begin, int64_t end) const;
  void by_panels_of(const PanelSource& w, const Tensor& x, const Tensor& y, const Epilogue& epilogue);
  Tensor dense(const Tensor& x, DType dtype);                          // x itself, or a copy
  Tensor ordered(const Tensor& x, const std::vector<int32_t>& order);  // x itself without an order

  Isa isa_;
  DType compute_dtype_;
  Scratch x_copy_, x_ordered_;
  CodeProducts codes_;
  Scratch coded_;                // rows of x as integers
  std::vector<Scratch> values_;  // a panel of quantised weights as values, one per thread
  std::vector<Scratch> blocks_;  // of products in blocks, one per thread
  AmxMemory amx_;
  std::vector<CodedProduct> groups_;  // of run_groups
};

}  // namespace vlcache::cpu
