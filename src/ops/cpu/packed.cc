#include "ops/cpu/packed.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/os/threads.h"
#include "ops/cpu/quant/quant_panel.h"
#include "ops/cpu/row_ops.h"

namespace vlcache::cpu {
namespace {

// Inputs that are transposed at a time: 64 rows x 128 elements and their transposed copy fit into L1 together.
constexpr int64_t kSpan = 128;

// The source of one row of a panel.
struct Source {
  const std::byte* data;
  DType dtype;
};

Source source_of(std::span<const Tensor> parts, int64_t row) {
  for (const Tensor& part : parts) {
    if (row < part.rows()) return {part.data + row * part.stride * dtype_bytes(part.dtype), part.dtype};
    row -= part.rows();
  }
  CHECK(false);
}

// out[u, r] = rows[r][u] for units of 4 bytes (pairs of bf16 or single f32), rows at any alignment. Eight rows at a
// time: rows of a power-of-two length share one L1 set, which holds no more than that.
void transpose_units(const std::byte* const* rows, int64_t n_rows, int64_t n, std::byte* out) {
  constexpr int64_t kGroup = 8;
  int64_t r = 0;
  for (; r + kGroup <= n_rows; r += kGroup) {
    for (int64_t u = 0; u < n; ++u) {
      uint32_t units[kGroup];
      for (int64_t i = 0; i < kGroup; ++i) std::memcpy(&units[i], rows[r + i] + u * 4, 4);
      std::memcpy(out + (u * kPanel + r) * 4, units, sizeof(units));
    }
  }
  for (; r < n_rows; ++r) {
    for (int64_t u = 0; u < n; ++u) std::memcpy(out + (u * kPanel + r) * 4, rows[r] + u * 4, 4);
  }
}

// One panel: outputs [first, first + n_rows).
void pack_panel(Isa isa, std::span<const Tensor> parts, const Panels& w, int64_t first, std::byte* out) {
  const int64_t n_rows = std::min(kPanel, w.n_out - first), size = dtype_bytes(w.dtype), per_unit = 4 / size;
  Source sources[kPanel];
  for (int64_t r = 0; r < n_rows; ++r) sources[r] = source_of(parts, first + r);
  alignas(64) std::byte staged[kPanel * kSpan * 4];
  const std::byte* rows[kPanel];
  for (int64_t begin = 0; begin < w.n_in; begin += kSpan) {
    const int64_t n = std::min(kSpan, w.n_in - begin);
    const bool whole = n % per_unit == 0;
    for (int64_t r = 0; r < n_rows; ++r) {
      const auto [data, dtype] = sources[r];
      const std::byte* from = data + begin * dtype_bytes(dtype);
      std::byte* stage = staged + r * kSpan * size;
      if (dtype == w.dtype && whole) {
        rows[r] = from;
        continue;
      }
      convert_values(isa, {dtype, w.dtype}, from, stage, n);
      if (!whole) std::memset(stage + n * size, 0, static_cast<size_t>(size));  // the partner of the last, odd input
      rows[r] = stage;
    }
    transpose_units(rows, n_rows, (n + per_unit - 1) / per_unit, out + begin * kPanel * size);
  }
}

// Row `id` of dense panels, in their own dtype.
void unpack_row(const Panels& w, int64_t id, std::byte* out) {
  const int64_t size = dtype_bytes(w.dtype), per_unit = 4 / size;
  const std::byte* from = w.panel(id / kPanel) + id % kPanel * 4;
  int64_t k = 0;
  for (; k + per_unit <= w.n_in; k += per_unit) std::memcpy(out + k * size, from + k * kPanel * size, 4);
  if (k < w.n_in) std::memcpy(out + k * size, from + k * kPanel * size, static_cast<size_t>(size));
}

// Row `id` of a packed weight, in its compute dtype.
void embed_row(Isa isa, const Weight& w, int64_t id, std::byte* out) {
  const auto segment = std::ranges::find_if(w.segments, [&](const WeightSegment& s) {
    if (id < s.n_out) return true;
    id -= s.n_out;
    return false;
  });
  CHECK(segment != w.segments.end());
  if (!segment->form) return unpack_row(panels_of(w, *segment), id, out);
  thread_local std::vector<float> row;
  row.resize(static_cast<size_t>(w.n_in));
  dequantise_row(quant_panels_of(w, *segment), id, row.data());
  convert_values(isa, {DType::kF32, w.dtype}, reinterpret_cast<const std::byte*>(row.data()), out, w.n_in);
}

}  // namespace

int64_t packed_bytes(DType dtype, const std::optional<QuantForm>& form, int64_t n_out, int64_t n_in) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  return n_panels * (form ? QuantLayout{*form, n_in}.panel_bytes() : Panels{nullptr, dtype, n_out, n_in}.panel_bytes());
}

Weight pack(Isa isa, DType dtype, std::span<const Tensor> parts) {
  CHECK(!parts.empty() && (dtype == DType::kF32 || dtype == DType::kBF16));
  Weight w{.n_in = parts[0].row_size(), .dtype = dtype};
  for (const Tensor& part : parts) {
    CHECK(part.row_size() == w.n_in);
    w.n_out += part.rows();
  }
  const int64_t n_panels = (w.n_out + kPanel - 1) / kPanel;
  WeightSegment& segment = w.segments.emplace_back();
  segment.n_out = w.n_out;
  const int64_t panel_bytes = Panels{nullptr, dtype, w.n_out, w.n_in}.panel_bytes();
  segment.memory = Buffer(n_panels * panel_bytes);
  const Panels panels = panels_of(w, segment);
  parallel_for(n_panels, [&](int64_t p, int) {
    pack_panel(isa, parts, panels, p * kPanel, segment.memory.data() + p * panel_bytes);
  });
  return w;
}

void embed(Isa isa, std::span<const int32_t> ids, const Weight& w, const Tensor& y) {
  CHECK(y.rows() == static_cast<int64_t>(ids.size()) && y.row_size() == w.n_in);
  const int64_t y_bytes = dtype_bytes(y.dtype);
  for_row_ranges(y.rows(), y.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      CHECK(0 <= id && id < w.n_out);
      std::byte* out = y.data + i * y.stride * y_bytes;
      if (w.packed()) {
        CHECK(w.dtype == y.dtype);
        embed_row(isa, w, id, out);
      } else {
        const std::byte* row = w.rows.data + id * w.rows.stride * dtype_bytes(w.rows.dtype);
        convert_values(isa, {w.rows.dtype, y.dtype}, row, out, w.n_in);
      }
    }
  });
}

}  // namespace vlcache::cpu
