// StoredMatrix: a matrix that a checkpoint holds as codes and scales, whatever its format. GroupedCodes and
// BlockValues: the two kinds that the readers of formats make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/numeric/quant_form.h"

namespace vlcache {

// A tensor of a file, of any type.
struct StoredTensor {
  std::string name, dtype;  // as in the file: "I32", "F8_E4M3"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  std::string describe() const;  // "I32[64, 8]"
};

// [n_out, n_in]. Any thread. Refers to the mapped file, which must outlive it.
class StoredMatrix {
 public:
  explicit StoredMatrix(std::vector<StoredTensor> tensors) : tensors_(std::move(tensors)) {}
  virtual ~StoredMatrix() = default;
  // The codes in a form that stands for the same weights; null: no form does, or they are values.
  virtual const QuantSource* codes() const { return nullptr; }
  // Rows [first, first + n) as f32, [n, n_in]: products of the stored values, rounded once.
  virtual void values(int64_t first, int64_t n, float* out) const = 0;
  // What it is made of, in a fixed order.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  std::vector<StoredTensor> tensors_;
};

// Codes of which a group of inputs shares a scale, in the terms of QuantForm.
struct CodeLayout {
  int bits = 4;  // 4 or 8
  CodeTable table = CodeTable::kLinear;
  int64_t group = 0;                    // inputs that share a scale; the last group may have fewer
  std::optional<ScaleKind> scale_kind;  // which holds every scale; none: no 16-bit float does
  std::vector<float> scales;            // [n_out, n_groups]; with kFp4, of its values not doubled
  std::vector<uint8_t> zeros;           // the same, of the codes that stand for 0; empty: 2^(bits - 1), or a table
  std::vector<int32_t> group_of;        // [n_in] where it is not k / group; codes are then read by groups
  std::function<void(int64_t first, int64_t n, uint8_t* codes)> unpack;  // rows, as [n, n_in] unsigned codes
};

class GroupedCodes : public StoredMatrix, public QuantSource {
 public:
  GroupedCodes(int64_t n_out, int64_t n_in, CodeLayout layout, std::vector<StoredTensor> tensors);
  const QuantSource* codes() const override { return form_ ? this : nullptr; }
  void values(int64_t first, int64_t n, float* out) const override;

  // ---- as codes(), if there are any
  // ----------------------------------------------------------------------------------
  QuantForm form() const override { return *form_; }
  int64_t n_out() const override { return n_out_; }
  int64_t n_in() const override { return n_in_; }
  void read(int64_t first, int64_t n, QuantRows& out) const override;
  std::span<const int32_t> input_order() const override { return order_; }

 private:
  uint16_t scale_bits(float scale) const;

  int64_t n_out_, n_in_;
  CodeLayout layout_;
  int64_t n_groups_;
  std::optional<QuantForm> form_;
  std::vector<int32_t> order_;  // the inputs by their groups, where the groups are not in order
};

// Bytes of E4M3, of which a block of rows and inputs shares a factor: values, which no form of codes holds.
class BlockValues : public StoredMatrix {
 public:
  // `factors`: [rows of blocks, blocks of a row]; the last of each may be smaller.
  BlockValues(int64_t n_out, int64_t n_in, int64_t block_rows, int64_t block_inputs, std::vector<float> factors,
              std::vector<StoredTensor> tensors);
  void values(int64_t first, int64_t n, float* out) const override;

 private:
  int64_t n_in_, block_rows_, block_inputs_;
  std::vector<float> factors_;
};

// A byte as E4M3 (float8_e4m3fn: no infinities, 0x7f and 0xff are NaN).
float e4m3_to_float(uint8_t bits);

}  // namespace vlcache
