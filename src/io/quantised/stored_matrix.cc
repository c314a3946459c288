#include "io/quantised/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/at.h"
#include "base/dtype.h"
#include "base/error.h"

namespace vlcache {
namespace {

// The largest group of a form that a stored group consists of; 0: none. A group of all inputs is cut as it fits best.
int64_t group_of_form(int64_t group, int64_t n_in) {
  if (group >= n_in) return 128;
  for (const int64_t size : {128, 64, 32, 16}) {
    if (group % size == 0) return size;
  }
  return 0;
}

// The inputs sorted by their groups; empty unless each group but the last has `group` of them.
std::vector<int32_t> sorted_by_group(const std::vector<int32_t>& group_of, int64_t group) {
  std::vector<int32_t> order(group_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t k) { return group_of[at(k)]; });
  for (int64_t k = 0; k < std::ssize(order); ++k) {
    if (group_of[at(order[at(k)])] != k / group) return {};
  }
  return order;
}

std::array<float, 256> e4m3_table() {
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) table[at(i)] = e4m3_to_float(static_cast<uint8_t>(i));
  return table;
}

}  // namespace

std::string StoredTensor::describe() const {
  std::string text = dtype + "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

float e4m3_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 0xf, mantissa = bits & 7;
  float value = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 8), std::max(exponent, 1) - 10);
  if (exponent == 0xf && mantissa == 7) value = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

GroupedCodes::GroupedCodes(int64_t n_out, int64_t n_in, CodeLayout layout, std::vector<StoredTensor> tensors)
    : StoredMatrix(std::move(tensors)),
      n_out_(n_out),
      n_in_(n_in),
      layout_(std::move(layout)),
      n_groups_(std::ssize(layout_.scales) / std::max<int64_t>(1, n_out)) {
  CHECK(layout_.bits == 4 || layout_.bits == 8);
  CHECK(std::ssize(layout_.scales) == n_out * n_groups_);
  CHECK(layout_.zeros.empty() || layout_.zeros.size() == layout_.scales.size());
  CHECK(layout_.group_of.empty() || std::ssize(layout_.group_of) == n_in);
  const uint8_t middle = static_cast<uint8_t>(1 << (layout_.bits - 1));
  if (std::ranges::all_of(layout_.zeros, [&](uint8_t z) { return z == middle; })) layout_.zeros.clear();
  const int64_t group = group_of_form(layout_.group, n_in);
  if (group == 0 || !layout_.scale_kind) return;
  if (!layout_.group_of.empty()) {
    order_ = sorted_by_group(layout_.group_of, layout_.group);
    if (order_.empty()) return;
  }
  form_ = QuantForm{.bits = static_cast<uint8_t>(layout_.bits),
                    .group = static_cast<uint8_t>(group),
                    .scale = *layout_.scale_kind,
                    .min = layout_.zeros.empty() ? MinKind::kNone : MinKind::kZeroPoint,
                    .table = layout_.table};
}

void GroupedCodes::values(int64_t first, int64_t n, float* out) const {
  std::vector<uint8_t> codes(at(n * n_in_));
  layout_.unpack(first, n, codes.data());
  const bool linear = layout_.table == CodeTable::kLinear;
  for (int64_t i = 0; i < n; ++i) {
    const float* scales = layout_.scales.data() + (first + i) * n_groups_;
    const uint8_t* zeros = layout_.zeros.empty() ? nullptr : layout_.zeros.data() + (first + i) * n_groups_;
    for (int64_t k = 0; k < n_in_; ++k) {
      const int64_t group = layout_.group_of.empty() ? k / layout_.group : layout_.group_of[at(k)];
      const int code = codes[at(i * n_in_ + k)];
      const int zero = zeros != nullptr ? zeros[group] : 1 << (layout_.bits - 1);
      const float c =
          linear ? static_cast<float>(code - zero) : 0.5f * static_cast<float>(table_value(layout_.table, code));
      out[i * n_in_ + k] = c * scales[group];
    }
  }
}

uint16_t GroupedCodes::scale_bits(float scale) const {
  if (layout_.table == CodeTable::kFp4) scale *= 0.5f;  // whose values are doubled
  return layout_.scale_kind == ScaleKind::kBF16 ? to_bf16(scale).bits : float_to_f16(scale);
}

void GroupedCodes::read(int64_t first, int64_t n, QuantRows& out) const {
  out.resize(*form_, n, n_in_);
  layout_.unpack(first, n, out.codes.data());
  if (!order_.empty()) {
    const std::vector<uint8_t> stored = out.codes;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n_in_; ++k) out.codes[at(i * n_in_ + k)] = stored[at(i * n_in_ + order_[at(k)])];
    }
  }
  const int64_t groups = form_->n_groups(n_in_);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t stored = (first + i) * n_groups_ + g * form_->group / layout_.group, to = i * groups + g;
      out.scales[at(to)] = scale_bits(layout_.scales[at(stored)]);
      if (!out.mins.empty()) out.mins[at(to)] = layout_.zeros[at(stored)];
    }
  }
}

BlockValues::BlockValues(int64_t n_out, int64_t n_in, int64_t block_rows, int64_t block_inputs,
                         std::vector<float> factors, std::vector<StoredTensor> tensors)
    : StoredMatrix(std::move(tensors)),
      n_in_(n_in),
      block_rows_(block_rows),
      block_inputs_(block_inputs),
      factors_(std::move(factors)) {
  const auto blocks = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  CHECK(std::ssize(factors_) == blocks(n_out, block_rows) * blocks(n_in, block_inputs));
  CHECK(std::ssize(this->tensors().at(0).bytes) == n_out * n_in);
}

void BlockValues::values(int64_t first, int64_t n, float* out) const {
  static const std::array<float, 256> kValues = e4m3_table();
  const int64_t per_row = (n_in_ + block_inputs_ - 1) / block_inputs_;
  for (int64_t i = 0; i < n; ++i) {
    const std::byte* codes = tensors()[0].bytes.data() + (first + i) * n_in_;
    const float* factors = factors_.data() + (first + i) / block_rows_ * per_row;
    for (int64_t k = 0; k < n_in_; ++k)
      out[i * n_in_ + k] = kValues[std::to_integer<size_t>(codes[k])] * factors[k / block_inputs_];
  }
}

}  // namespace vlcache
