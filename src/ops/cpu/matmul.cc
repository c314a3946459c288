// Which kernel multiplies what.
#include "ops/cpu/matmul.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/threads.h"
#include "ops/cpu/epilogue.h"
#include "ops/cpu/onednn.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/panel_kernel.h"
#include "ops/cpu/row_ops.h"

namespace vlcache::cpu {
namespace {

// Up to this many rows our kernels read the weights as fast as the memory gives them; beyond, oneDNN's blocking pays.
constexpr int64_t kFewRows = 16;

// Outputs are dealt to threads in units of 16, one cache line of a panel's row, so that 9 panels are halves of 4.5 for
// two threads.
constexpr int64_t kColumnUnit = 16;

// Weights of fewer bytes than this are read by one thread in the time it takes to wake another.
constexpr int64_t kBytesPerThread = 64 << 10;

// Outputs of a tile widened to f32: 512 x n_in 2048 are 4 MiB, which the threads share.
constexpr int64_t kTileColumns = 512;

struct FewRows {
  Isa isa;
  const std::byte* x;  // as the kernel wants it
  int64_t x_stride;
  int64_t x_bytes;  // per element
  int64_t n_rows;
  const Weight& w;
  const Tensor& y;
  const Epilogue& epilogue;

  // Outputs [begin, end).
  void run(int64_t begin, int64_t end) const {
    alignas(64) float sums[kPanelRows * kPanel];
    for (int64_t column = begin; column < end;) {
      const int64_t in_panel = column % kPanel, next = std::min(end, column - in_panel + kPanel);
      const std::byte* panel = w.owned.data() + column / kPanel * panel_bytes(w) + in_panel * 4;
      for (int64_t row = 0; row < n_rows; row += kPanelRows) {
        const int64_t rows = std::min(kPanelRows, n_rows - row);
        multiply(
            {x + row * x_stride * x_bytes, x_stride, rows, w.n_in, panel, round_up(next - column, kColumnUnit), sums});
        finish_tile(isa, {sums, kPanel, row, rows, column, next - column}, epilogue, y);
      }
      column = next;
    }
  }

  void multiply(const PanelArgs& args) const {
    if (w.dtype == DType::kF32) return panel_simd_f32(isa, args);
    if (x_bytes == 2) return panel_bf16dot(args);
    return panel_simd_bf16(isa, args);
  }
};

bool needs_copy(const Tensor* t) { return t != nullptr && !t->dense(); }

// `t` as dense rows in `scratch`.
Tensor dense_view(const Tensor& t, Scratch& scratch) {
  return Tensor(scratch.get(t.numel() * dtype_bytes(t.dtype)), t.dtype, {t.rows(), t.row_size()});
}

}  // namespace

Matmul::Matmul(Isa isa, DType compute_dtype)
    : isa_(isa), compute_dtype_(compute_dtype), onednn_(std::make_unique<OneDnn>()) {}
Matmul::~Matmul() = default;

int64_t Matmul::scratch_bytes() const {
  return x_copy_.bytes() + y_copy_.bytes() + residual_copy_.bytes() + tile_.bytes() + onednn_->scratch_bytes();
}

void Matmul::run(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  CHECK(w.packed && w.dtype == compute_dtype_ && x.dtype == compute_dtype_ &&
        (y.dtype == compute_dtype_ || y.dtype == DType::kF32));
  CHECK(x.row_size() == w.n_in && y.row_size() == w.n_out && x.rows() == y.rows());
  const auto [bias, act, residual] = epilogue;
  CHECK(bias == nullptr || (bias->numel() == w.n_out && bias->dtype == compute_dtype_));
  CHECK(residual == nullptr ||
        (residual->rows() == y.rows() && residual->row_size() == w.n_out && residual->dtype == y.dtype));
  if (y.numel() == 0) return;
  if (x.rows() <= kFewRows) {
    few_rows(x, w, y, epilogue);
  } else {
    many_rows(x, w, y, epilogue);
  }
}

void Matmul::few_rows(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  Tensor input = x.view({x.rows(), w.n_in});
  if (x.dtype == DType::kBF16 && isa_ < Isa::kAvx512Bf16) {
    input = Tensor(x_copy_.get(x.numel() * 4), DType::kF32, {x.rows(), w.n_in});
    convert(isa_, x.view({x.rows(), w.n_in}), input);
  }
  const FewRows job{isa_, input.data, input.stride, dtype_bytes(input.dtype), x.rows(), w, y, epilogue};
  const int64_t grain = std::max(
      kColumnUnit, round_up(kBytesPerThread / (dtype_bytes(w.dtype) * std::max<int64_t>(1, w.n_in)), kColumnUnit));
  if (w.n_out <= grain) return job.run(0, w.n_out);
  const auto share = [&](int64_t begin, int64_t end, int) { job.run(begin, end); };
  // A coarse grain would make unequal shares: with enough work cut at single units.
  parallel_ranges(w.n_out, w.n_out >= 2 * grain * n_threads() ? kColumnUnit : grain, std::ref(share));
}

void Matmul::many_rows(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  const Isa needed = w.dtype == DType::kBF16 ? Isa::kAvx512Bf16 : Isa::kAvx512;
  if (isa_ < needed) return widened_tiles(x, w, y, epilogue);
  Tensor x_dense = x, y_dense = y, residual_dense;
  Epilogue dense = epilogue;
  if (!x.dense()) convert(isa_, x, x_dense = dense_view(x, x_copy_));
  if (!y.dense()) y_dense = dense_view(y, y_copy_);
  const bool in_place = epilogue.residual != nullptr && epilogue.residual->data == y.data;
  if (needs_copy(epilogue.residual) || (in_place && !y.dense())) {
    residual_dense = in_place ? y_dense : dense_view(*epilogue.residual, residual_copy_);
    convert(isa_, *epilogue.residual, residual_dense);
    dense.residual = &residual_dense;
  }
  if (!onednn_->packed_matmul(x_dense, w, y_dense, dense)) return widened_tiles(x, w, y, epilogue);
  if (!y.dense()) convert(isa_, y_dense, y);
}

// Without a fast kernel for the packed layout: some outputs at a time as plain f32, to oneDNN's f32 GEMM.
void Matmul::widened_tiles(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  const int64_t m = x.rows(), k = w.n_in;
  if (k == 0) return few_rows(x, w, y, epilogue);
  Tensor input = x.view({m, k});
  if (x.dtype != DType::kF32 || !x.dense()) {
    input = Tensor(x_copy_.get(m * k * 4), DType::kF32, {m, k});
    convert(isa_, x.view({m, k}), input);
  }
  const int64_t widest = std::min(kTileColumns, w.n_out);
  float* columns = reinterpret_cast<float*>(tile_.get(k * widest * 4));
  float* sums = reinterpret_cast<float*>(y_copy_.get(m * widest * 4));
  for (int64_t begin = 0; begin < w.n_out; begin += kTileColumns) {
    const int64_t end = std::min(w.n_out, begin + kTileColumns), n = end - begin;
    parallel_ranges(n, kPanel, [&](int64_t from, int64_t to, int) {
      unpack_columns(w, {begin + from, begin + to}, columns + from, n);
    });
    onednn_->plain_matmul(input, Tensor(columns, DType::kF32, {k, n}), Tensor(sums, DType::kF32, {m, n}));
    for_row_ranges(m, n, [&](int64_t from, int64_t to) {
      finish_tile(isa_, {sums + from * n, n, from, to - from, begin, n}, epilogue, y);
    });
  }
}

}  // namespace vlcache::cpu
