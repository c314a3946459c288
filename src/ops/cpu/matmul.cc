// Which kernel multiplies what.
//
// bf16 with AVX-512 BF16: our panel kernel for any number of rows. oneDNN 2.6 (brgemm) on the same packed weights was
// measured beside it, one core, 1.1B shapes, percent of the bf16 peak: 8 rows 43 against 50, 16 rows 62 / 68, 512 rows
// 91 / 92, 577 rows 74-85 / 85-92, 2048 rows 92 / 92; it also takes dense rows only, compiles code for every new row
// count, and lets the other rows of a batch change a row's rounding. bench/gemm_bench prints both. f32 with AVX-512:
// the panel kernel for few rows, oneDNN on the packed weights for many. Otherwise: the panel kernel widening in
// registers for few rows; for many, tiles of the weights are laid out as plain f32 for oneDNN's f32 GEMM.
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

// Up to this many rows the panel kernel reads the weights as fast as memory gives them; beyond, oneDNN's blocking pays
// where our kernel is not the faster one anyway.
constexpr int64_t kFewRows = 16;

// Bytes of x that go over a panel before the next panel is taken: they stay in L2 and L3 (measured with 2048 rows of
// 2048 inputs: 84 % of the peak without blocks, 89-93 % with).
constexpr int64_t kBlockBytes = 2 << 20;
constexpr int64_t kMinRowBlock = 96;  // a panel fetched from memory must be worth it

// Parts of a panel are multiples of 16 outputs: one cache line of a panel's row.
constexpr int64_t kColumnUnit = 16;

// Tasks per thread of a product with many rows: small enough ones that a disturbed core costs little.
constexpr int64_t kTasksPerThread = 16;

// Pieces per thread of a product with few rows.
constexpr int64_t kPiecesPerThread = 4;

// Multiply-adds that one thread does in the time it takes to wake another.
constexpr int64_t kSmallProduct = 1 << 20;

// Weights of fewer bytes than this are read by one thread in the time it takes to wake another.
constexpr int64_t kBytesPerThread = 64 << 10;

// Outputs of a tile widened to f32: 512 x n_in 2048 are 4 MiB, which the threads share.
constexpr int64_t kTileColumns = 512;

struct PanelJob {
  Isa isa;
  const std::byte* x;  // as the kernel wants it
  int64_t x_stride;
  int64_t x_bytes;  // per element
  int64_t n_rows;
  const Weight& w;
  const Tensor& y;
  const Epilogue& epilogue;

  // Outputs [begin, end) of rows [first, last).
  void run(int64_t begin, int64_t end, int64_t first, int64_t last) const {
    alignas(64) float sums[kPanelRows * kPanel];
    for (int64_t column = begin; column < end;) {
      const int64_t in_panel = column % kPanel, next = std::min(end, column - in_panel + kPanel);
      const std::byte* panel = w.owned.data() + column / kPanel * panel_bytes(w) + in_panel * 4;
      for (int64_t row = first; row < last; row += kPanelRows) {
        const int64_t rows = std::min(kPanelRows, last - row);
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

// Few rows: every weight is read once. Pieces are handed out as threads come: on a shared machine cores are not equally
// fast.
void run_few_rows(const PanelJob& job) {
  const int64_t output_bytes = dtype_bytes(job.w.dtype) * std::max<int64_t>(1, job.w.n_in);
  const int64_t share = job.w.n_out / (kPiecesPerThread * n_threads());
  const int64_t piece =
      round_up(std::max(share, kBytesPerThread / output_bytes), share >= kPanel ? kPanel : kColumnUnit);
  parallel_for((job.w.n_out + piece - 1) / piece,
               [&](int64_t i, int) { job.run(i * piece, std::min(job.w.n_out, (i + 1) * piece), 0, job.n_rows); });
}

// Many rows: tasks of some panels x a block of rows, the panels of one block next to each other in time.
void run_many_rows(const PanelJob& job) {
  const int64_t n_panels = (job.w.n_out + kPanel - 1) / kPanel, n_tasks = kTasksPerThread * n_threads();
  const int64_t row_bytes = std::max<int64_t>(1, job.w.n_in) * job.x_bytes;
  const int64_t most_rows = std::max(kMinRowBlock, kBlockBytes / row_bytes);
  int64_t n_blocks = (job.n_rows + most_rows - 1) / most_rows;
  const int64_t panels = std::max<int64_t>(1, n_panels * n_blocks / n_tasks);
  const int64_t n_groups = (n_panels + panels - 1) / panels;
  if (n_groups * n_blocks < n_tasks)
    n_blocks = std::max(n_blocks, std::min(n_tasks / n_groups, job.n_rows / (4 * kPanelRows)));
  const int64_t block = round_up((job.n_rows + n_blocks - 1) / n_blocks, kPanelRows);
  n_blocks = (job.n_rows + block - 1) / block;
  const auto task = [&](int64_t i, int) {
    const int64_t column = i % n_groups * panels * kPanel, row = i / n_groups * block;
    job.run(column, std::min(job.w.n_out, column + panels * kPanel), row, std::min(job.n_rows, row + block));
  };
  parallel_for(n_groups * n_blocks, std::ref(task));
}

}  // namespace

Matmul::Matmul(Isa isa, DType compute_dtype)
    : isa_(isa), compute_dtype_(compute_dtype), onednn_(std::make_unique<OneDnn>()) {}
Matmul::~Matmul() = default;

int64_t Matmul::scratch_bytes() const {
  return x_copy_.bytes() + y_copy_.bytes() + residual_copy_.bytes() + tile_.bytes() + onednn_->scratch_bytes();
}

void Matmul::run(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  CHECK(w.packed && w.dtype == compute_dtype_ && x.dtype == compute_dtype_);
  CHECK(y.dtype == compute_dtype_ || y.dtype == DType::kF32);
  CHECK(x.row_size() == w.n_in && y.row_size() == w.n_out && x.rows() == y.rows());
  const auto [bias, act, residual] = epilogue;
  CHECK(bias == nullptr || (bias->numel() == w.n_out && bias->dtype == compute_dtype_));
  CHECK(residual == nullptr ||
        (residual->rows() == y.rows() && residual->row_size() == w.n_out && residual->dtype == y.dtype));
  if (y.numel() == 0) return;
  const bool bf16_dot = w.dtype == DType::kBF16 && isa_ == Isa::kAvx512Bf16;
  if (bf16_dot || x.rows() <= kFewRows || w.n_in == 0) {
    by_panels(x, w, y, epilogue);
  } else {
    by_onednn(x, w, y, epilogue);
  }
}

void Matmul::by_panels(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  Tensor input = x.view({x.rows(), w.n_in});
  if (x.dtype == DType::kBF16 && isa_ < Isa::kAvx512Bf16) input = dense_f32(x);
  const PanelJob job{isa_, input.data, input.stride, dtype_bytes(input.dtype), x.rows(), w, y, epilogue};
  if (x.rows() * w.n_out * w.n_in <= kSmallProduct && w.n_out * w.n_in * dtype_bytes(w.dtype) <= kBytesPerThread) {
    job.run(0, w.n_out, 0, x.rows());
  } else if (x.rows() <= kFewRows) {
    run_few_rows(job);
  } else {
    run_many_rows(job);
  }
}

Tensor Matmul::dense_f32(const Tensor& x) {
  const Tensor rows = x.view({x.rows(), x.row_size()});
  if (x.dtype == DType::kF32 && x.dense()) return rows;
  const Tensor copy(x_copy_.get(x.numel() * 4), DType::kF32, {x.rows(), x.row_size()});
  convert(isa_, rows, copy);
  return copy;
}

void Matmul::by_onednn(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  if (isa_ < (w.dtype == DType::kBF16 ? Isa::kAvx512Bf16 : Isa::kAvx512)) return by_widened_tiles(x, w, y, epilogue);
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
  if (!onednn_->packed_matmul(x_dense, w, y_dense, dense)) return by_widened_tiles(x, w, y, epilogue);
  if (!y.dense()) convert(isa_, y_dense, y);
}

// Without a fast kernel for the packed layout: some outputs at a time as plain f32, to oneDNN's f32 GEMM.
void Matmul::by_widened_tiles(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  const int64_t m = x.rows(), k = w.n_in, widest = std::min(kTileColumns, w.n_out);
  const Tensor input = dense_f32(x);
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
