// WeightForms: the forms in which a model's matrices are kept in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/numeric/quant_form.h"

namespace vlcache {

// As `--weights` names them. kAuto: as the checkpoint has them: its codes, bit for bit, and values in the compute
// dtype. kInt4Plus: kInt4, with 6 bits for the matrices whose errors cost most.
enum class WeightChoice : uint8_t { kAuto, kDense, kInt8, kInt4, kInt4Plus };
std::string_view weight_choice_name(WeightChoice choice);  // "auto", "dense", "int8", "int4", "int4+"

inline bool quantises(WeightChoice choice) { return choice != WeightChoice::kAuto && choice != WeightChoice::kDense; }

struct WeightForms {
  WeightChoice text = WeightChoice::kAuto;
  WeightChoice vision = WeightChoice::kAuto;  // of the encoder's layers: kAuto, kDense or kInt8
  std::optional<DType> dense;  // what dense ones are asked to be; loading fails if the compute dtype is another

  // Whether they quantise anything. Codes of a checkpoint (kAuto) are there already.
  bool quantised() const { return quantises(text) || quantises(vision); }
};

// What a matrix is for, as far as its form depends on it.
enum class MatrixRole : uint8_t {
  kUsual,
  kSensitive,  // values of attention, and the MLP's way back
  kShared,     // keys and values that several heads of queries share: few rows, whose errors count several times
  kTokens,     // embeddings and the output matrix
};

// None: the compute dtype.
std::optional<QuantForm> form_of(WeightChoice choice, MatrixRole role);

// The form of values that are this far from a grid of 16 (distance_from_grid) where `form` is asked for. Values that
// moved from a grid by less than a step, as those of a model that was fine-tuned from dequantised weights, would be
// rounded back to where they began: they get 8 bits instead of fewer.
std::optional<QuantForm> form_near_grid(const std::optional<QuantForm>& form, float distance);

// Consecutive rows of a matrix that are kept in one form.
struct RowForm {
  int64_t n_rows = 0;
  std::optional<QuantForm> form;
  bool keep_codes = false;  // rows that the checkpoint stores as codes are kept as such; `form` is then none
};
using RowForms = std::vector<RowForm>;  // of all rows; empty: all in the compute dtype

}  // namespace vlcache
