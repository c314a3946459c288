#include "base/numeric/quant_form.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/at.h"
#include "base/dtype.h"
#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::array<int8_t, 16> kNl4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<int8_t, 16> kFp4Values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace

int table_value(CodeTable table, int code) {
  CHECK(table != CodeTable::kLinear && 0 <= code && code < 16);
  return (table == CodeTable::kNl4 ? kNl4Values : kFp4Values)[at(code)];
}

double QuantForm::bits_per_weight(int64_t n_in) const {
  const int64_t group_bits = byte_scales() ? 8 : 16;
  const int64_t min_bits = min == MinKind::kNone ? 0 : min == MinKind::kF16 ? 16 : 8;
  const int64_t shared_bits = min == MinKind::kU8 ? 32 : 16;
  const double rest = static_cast<double>(n_groups(n_in) * (group_bits + min_bits) + n_shared(n_in) * shared_bits);
  return bits + rest / static_cast<double>(n_in);
}

bool QuantForm::valid() const {
  const bool widths =
      (bits == 4 || bits == 5 || bits == 6 || bits == 8) && (group == 16 || group == 32 || group == 64 || group == 128);
  const bool tables = table == CodeTable::kLinear || (bits == 4 && min == MinKind::kNone);
  return widths && tables && (bits != 5 || group >= 32) && (min != MinKind::kU8 || byte_scales());
}

std::string QuantForm::describe() const {
  static constexpr const char* kScales[] = {"f16", "bf16", "s8*f16/256", "u8*f16/row"};
  static constexpr const char* kTables[] = {"", " nl4", " fp4"};
  std::string text = std::to_string(bits) + " bits" + kTables[static_cast<size_t>(table)] + " g" +
                     std::to_string(group) + " " + kScales[static_cast<size_t>(scale)];
  if (min == MinKind::kF16) text += " +f16";
  if (min == MinKind::kU8) text += scale == ScaleKind::kS8Of256 ? " -u8*f16/256" : " -u8*f16/row";
  if (min == MinKind::kZeroPoint) text += " zero";
  return text;
}

void QuantRows::resize(const QuantForm& new_form, int64_t new_rows, int64_t new_in) {
  CHECK(new_form.valid());
  form = new_form, n_rows = new_rows, n_in = new_in;
  const int64_t groups = n_rows * form.n_groups(n_in), shared = n_rows * form.n_shared(n_in);
  codes.resize(at(n_rows * n_in));
  scales.resize(at(groups));
  mins.resize(form.min == MinKind::kNone ? 0 : at(groups));
  shared_scales.resize(at(shared));
  shared_mins.resize(form.min == MinKind::kU8 ? at(shared) : 0);
}

float QuantRows::scale(int64_t row, int64_t group) const {
  const uint16_t bits = scales[at(row * form.n_groups(n_in) + group)];
  if (form.scale == ScaleKind::kF16) return f16_to_float(bits);
  if (form.scale == ScaleKind::kBF16) return to_float(bf16{bits});
  const int64_t shared = row * form.n_shared(n_in) + group * form.group / form.shared_inputs(n_in);
  const bool is_signed = form.scale == ScaleKind::kS8Of256;
  const int byte = is_signed ? static_cast<int8_t>(bits) : static_cast<uint8_t>(bits);
  return f16_to_float(shared_scales[at(shared)]) * static_cast<float>(byte);
}

float QuantRows::min(int64_t row, int64_t group) const {
  if (form.min == MinKind::kNone) return 0.0f;
  const uint16_t bits = mins[at(row * form.n_groups(n_in) + group)];
  if (form.min == MinKind::kF16) return f16_to_float(bits);
  if (form.min == MinKind::kZeroPoint) return -(scale(row, group) * static_cast<float>(bits));
  const int64_t shared = row * form.n_shared(n_in) + group * form.group / form.shared_inputs(n_in);
  return -(f16_to_float(shared_mins[at(shared)]) * static_cast<float>(bits));
}

void QuantRows::dequantise(int64_t row, float* out) const {
  const bool is_signed = form.min == MinKind::kNone && form.table == CodeTable::kLinear;
  const int offset = is_signed ? 1 << (form.bits - 1) : 0;
  for (int64_t begin = 0; begin < n_in; begin += form.group) {
    const int64_t group = begin / form.group, end = std::min<int64_t>(n_in, begin + form.group);
    const float s = scale(row, group), m = min(row, group);
    for (int64_t k = begin; k < end; ++k) {
      const int code = codes[at(row * n_in + k)];
      const auto c =
          static_cast<float>(form.table == CodeTable::kLinear ? code - offset : table_value(form.table, code));
      out[k] = form.min == MinKind::kNone ? s * c : std::fma(s, c, m);
    }
  }
}

}  // namespace vlcache
