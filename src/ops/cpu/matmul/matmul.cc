// Chooses the kernel of a product.
//
// bf16 with AMX: tiles, in blocks for more than 16 rows (amx_product.cc), the panel kernel on AVX-512 for up to 6. With
// AVX-512 (BF16 or widening, and f32): the panel kernel for any number of rows (1.1B as a whole on an Emerald Rapids
// without fast dot products, percent of the f32 peak: 20 rows 56, 40 rows 67, 512 rows 78). With AVX2, whose 16
// registers hold a third of the sums: the panel kernel for few rows, which reads the weights as fast as memory delivers
// them, and blocks of widened weights for many (block_product.h). All but AMX sum an output in one order, so that a
// row's result does not depend on how many rows are computed with it.
//
// oneDNN 2.6 was measured against these kernels on the same packed weights and is not used: on a Zen 3 (AVX2), 1.1B
// shapes, two threads, percent of the f32 peak at 20, 32 and 512 rows, it reached 53, 59-63 and 73-80 where blocks
// reach 62-68, 69-77 and 82-87; with AVX-512 BF16, one core, percent of the bf16 peak, 8 rows 43 against 50, 512 rows
// 91 against 92. It lets the other rows of a batch change a row's rounding, compiles code for every new row count, and
// its generated code uses the stack pointer as a data register, so that a signal handler writes into the heap.
//
// Quantised weights in bf16: the codes themselves, with x as integers, for few rows and, where products of integers are
// faster than those of values, for many. Otherwise a panel becomes values of the compute dtype once per block of rows,
// and the panel kernels take it from there. In f32 always the latter.
#include "ops/cpu/matmul/matmul.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/error.h"
#include "base/os/threads.h"
#include "ops/cpu/matmul/block_product.h"
#include "ops/cpu/matmul/epilogue.h"
#include "ops/cpu/matmul/panel_kernel.h"
#include "ops/cpu/matmul/tiling.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/quant/quant_kernel.h"
#include "ops/cpu/quant/quant_panel.h"
#include "ops/cpu/row_ops.h"

namespace vlcache::cpu {
namespace {

// Up to this many rows the panel kernel reads the weights as fast as memory delivers them; beyond, larger tasks and
// blocks pay.
constexpr int64_t kFewRows = 16;

// Quantised weights in bf16: up to this many rows are multiplied with codes, where those are words, and where they are
// bytes beside fast products of bf16; more with values. Words, measured in 4 bits, 2048 inputs, two cores with AVX-512:
// 12 rows in 2.7 ms and 3.0 by values. Bytes beside AMX, decode of the 1.1B shape in 4 bits, tokens/s of all sequences:
// 13 with codes 108 to 122 and 90 to 102 by values, 18 124 to 141 and 93 to 98, 24 105 to 143 and 126 to 137. Products
// of bytes without fast products of bf16 take any number of rows: 512 rows in 74 % of the time by values, 32 in 66 %.
constexpr int64_t kWordDotRows = 12, kRowsBesideBf16 = 20;

// Up to this many rows make bytes of codes in registers; for more they are stored first. Measured on one core, 11264 x
// 2048, in 4 bits: on 512 bits 32 rows in 6.5 ms and 7.1, 64 in 13.1 and 13.1, 128 in 26.5 and 25.3; on 256 bits 16
// rows in 6.4 and 5.7, 24 in 8.5 and 7.8, 64 in 24.3 and 19.0 (8 bits: 6.4 and 6.5, 8.9 and 8.8, 23.4 and 19.4). By
// words, 12 rows in 5.9 and 5.3, 8 in 4.4 and 4.0 (8 bits: 6.1 and 6.4, 4.3 and 4.9).
constexpr int64_t kFewCodedRows = 64, kFewCodedRows256 = 20;

// Rows of a group that n rows with codes are dealt into.
int64_t coded_group(int64_t n) {
  if (n > kFewCodedRows) return kCodedGroup;
  const int64_t n_groups = (n + kMostGrouped - 1) / kMostGrouped;
  return (n + n_groups - 1) / n_groups;
}

// Rows whose sums with a panel stay in L1 (8 KiB).
constexpr int64_t kRowsInL1 = 32;

// Elements of x that are made integers in the time it takes to wake a thread.
constexpr int64_t kCodedPerThread = 4096;

// Bytes of x that are multiplied with a panel before the next panel: they stay in L2 and L3 (measured with 2048 rows of
// 2048 inputs: 84 % of the peak without blocks, 89-93 % with).
constexpr int64_t kBlockBytes = 2 << 20;
constexpr int64_t kMinRowBlock = 96;  // a panel fetched from memory must be worth it

// Parts of a panel are multiples of 16 outputs: one cache line of a panel's row.
constexpr int64_t kColumnUnit = 16;

// Pieces per thread of a product with few rows. With codes, measured on a decode step in 4 bits: 16 pieces 40 tokens/s,
// 4 pieces 37.
constexpr int64_t kPiecesPerThread = 4, kCodePiecesPerThread = 16;

// Multiply-adds that one thread does in the time it takes to wake another.
constexpr int64_t kSmallProduct = 1 << 20;

// Weights of fewer bytes than this are read by one thread in the time it takes to wake another.
constexpr int64_t kBytesPerThread = 64 << 10;

// A panel of quantised weights becomes values for each block of rows: blocks are as large as their rows' time makes
// that small, whatever the caches hold of x, and are cut for the threads' sake into fewer tasks.
constexpr int64_t kQuantRowBlock = 512, kQuantTasksPerThread = 4;

struct PanelJob {
  Isa isa;
  const std::byte* x;  // in the kernel's dtype
  int64_t x_stride;
  int64_t x_bytes;  // per element
  int64_t n_rows;
  const PanelSource& source;
  std::vector<Scratch>& scratch;  // of threads, for quantised panels as values
  const Tensor& y;
  const Epilogue& epilogue;
  const Panels& w = source.values;

  // With few rows memory limits either kernel, yet AMX was measured 20 % slower there.
  bool on_amx() const { return isa >= Isa::kAmxBf16 && x_bytes == 2 && n_rows > kPanelRows; }
  int64_t tile_rows() const { return on_amx() ? kAmxRows : kPanelRows; }

  const std::byte* panel(int64_t i, int thread) const {
    return source.panel(i, source.quantised() ? scratch[static_cast<size_t>(thread)].get(0) : nullptr);
  }

  // Outputs [begin, end) of rows [first, last).
  void run(int64_t begin, int64_t end, int64_t first, int64_t last, int thread) const {
    alignas(64) float sums[kAmxRows * kPanel];
    const int64_t most_rows = tile_rows();
    for (int64_t column = begin; column < end;) {
      const int64_t in_panel = column % kPanel, next = std::min(end, column - in_panel + kPanel);
      const std::byte* weights = panel(column / kPanel, thread) + in_panel * 4;
      for (int64_t row = first; row < last; row += most_rows) {
        const int64_t rows = std::min(most_rows, last - row);
        multiply({x + row * x_stride * x_bytes, x_stride, rows, w.n_in, weights, round_up(next - column, kColumnUnit),
                  sums});
        finish_tile(isa, {sums, kPanel, row, rows, column, next - column}, epilogue, y);
      }
      column = next;
    }
  }

  void multiply(const PanelArgs& args) const {
    if (w.dtype == DType::kF32) return panel_simd_f32(isa, args);
    if (x_bytes == 2) return on_amx() ? panel_amx(args) : panel_bf16dot(args);
    return panel_simd_bf16(isa, args);
  }
};

// Few rows: every weight is read once. Threads take pieces as they become free: on a shared machine cores are not
// equally fast.
void run_few_rows(const PanelJob& job) {
  const int64_t output_bytes = dtype_bytes(job.w.dtype) * std::max<int64_t>(1, job.w.n_in);
  const int64_t share = job.w.n_out / (kPiecesPerThread * n_threads());
  const int64_t unit = share >= kPanel || job.source.quantised() ? kPanel : kColumnUnit;
  const int64_t piece = round_up(std::max({share, kBytesPerThread / output_bytes, int64_t{1}}), unit);
  parallel_for((job.w.n_out + piece - 1) / piece, [&](int64_t i, int thread) {
    job.run(i * piece, std::min(job.w.n_out, (i + 1) * piece), 0, job.n_rows, thread);
  });
}

// Rows of so many bytes that stay in caches, but `least` at least.
int64_t rows_in_caches(int64_t row_bytes, int64_t least = kMinRowBlock) {
  return std::max(least, kBlockBytes / std::max<int64_t>(1, row_bytes));
}

void run_many_rows(const PanelJob& job) {
  const int64_t row_bytes = job.w.n_in * job.x_bytes;
  TilingRules rules{.most_rows = rows_in_caches(row_bytes), .row_unit = job.tile_rows()};
  if (job.source.quantised()) {
    rules.most_rows = rows_in_caches(row_bytes, kQuantRowBlock);
    rules.tasks_per_thread = kQuantTasksPerThread;
  }
  tiles_of(job.n_rows, job.w.n_out, rules).for_each([&](Columns columns, int64_t first, int64_t last, int thread) {
    job.run(columns.begin, columns.end, first, last, thread);
  });
}

// Of each thread of the pool.
std::span<Scratch> of_threads(std::vector<Scratch>& scratch) {
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(n_threads())));
  return scratch;
}

// One thread is as fast as all.
bool is_small(int64_t n_rows, const Panels& w) {
  const int64_t weights = w.n_out * w.n_in;
  return n_rows * weights <= kSmallProduct && weights * dtype_bytes(w.dtype) <= kBytesPerThread;
}

void run_panels(const PanelJob& job) {
  if (is_small(job.n_rows, job.w)) {
    job.run(0, job.w.n_out, 0, job.n_rows, 0);
  } else if (job.n_rows <= kFewRows) {
    run_few_rows(job);
  } else {
    run_many_rows(job);
  }
}

// Rows of a tile of codes: more where products are so fast that making bytes of codes costs more, and L2 is larger.
constexpr int64_t code_tile_rows(Isa isa) { return isa >= Isa::kAvx512 ? 2 * kTileRows : kTileRows; }

// Memory of a thread in a product in such tiles: a block of weights, and the sums of a tile.
constexpr int64_t code_scratch_bytes(Isa isa) {
  return kCodeTileBytes + kTilePanels * code_tile_rows(isa) * kPanel * int64_t{sizeof(float)};
}

// A panel of quantised weights as values.
int64_t values_bytes(int64_t n_in, DType dtype) { return round_up(n_in, kUnit) * kPanel * dtype_bytes(dtype); }

// The panels of a matrix with codes, in pieces that threads take as they become free; n_products: with as many like it.
struct CodePieces {
  int64_t n_panels, panels, n;
  CodePieces(const QuantPanels& w, int64_t n_products) : n_panels((w.n_out + kPanel - 1) / kPanel) {
    const int64_t panel_bytes = std::max<int64_t>(1, w.layout.panel_bytes());
    panels = std::max(
        {n_products * n_panels / (kCodePiecesPerThread * n_threads()), kBytesPerThread / panel_bytes, int64_t{1}});
    n = (n_panels + panels - 1) / panels;
  }
  int64_t begin(int64_t i) const { return i * panels; }
  int64_t end(int64_t i) const { return std::min(n_panels, (i + 1) * panels); }
};

// `n` columns of a tensor of outputs.
Tensor outputs_of(const Tensor& t, int64_t first, int64_t n) {
  Tensor part(t.data + first * dtype_bytes(t.dtype), t.dtype, {t.rows(), n});
  part.stride = t.stride;
  return part;
}

}  // namespace

struct Matmul::CodedProduct {
  CodedRows rows;
  QuantPanels w;
  Tensor y;
  Epilogue epilogue;
  bool few, one_byte;  // rows; of CodedAs
};

Matmul::Matmul(Isa isa, DType compute_dtype, const CodeProducts& codes)
    : isa_(isa), compute_dtype_(compute_dtype), codes_(codes) {}
Matmul::~Matmul() = default;

int64_t Matmul::scratch_bytes() const {
  int64_t bytes = x_copy_.bytes() + x_ordered_.bytes() + coded_.bytes() + amx_.bytes();
  for (const std::vector<Scratch>* scratch : {&values_, &blocks_}) {
    for (const Scratch& memory : *scratch) bytes += memory.bytes();
  }
  return bytes;
}

int64_t Matmul::most_coded_rows() const {
  if (compute_dtype_ != DType::kBF16) return 0;
  if (codes_.activation_bits == ActivationBits::k8) return INT64_MAX;
  const bool tiles = isa_ < Isa::kAvx512Bf16 && has_code_tiles({isa_, codes_.byte_dots});
  if (tiles && (codes_.byte_dots || codes_.word_products)) return INT64_MAX;
  return codes_.byte_dots ? kRowsBesideBf16 : kWordDotRows;
}

bool Matmul::in_code_tiles(int64_t n_rows) const {
  const int64_t few = !codes_.byte_dots ? kWordDotRows : isa_ >= Isa::kAvx512 ? kFewCodedRows : kFewCodedRows256;
  return n_rows > few && has_code_tiles({isa_, codes_.byte_dots});
}

// Blocks of weights (amx_product.h) instead of a pass over all of them.
bool Matmul::on_amx(int64_t n_rows) const {
  return isa_ >= Isa::kAmxBf16 && compute_dtype_ == DType::kBF16 && n_rows > kFewRows;
}

// With the registers of AVX2, products of many rows widen weights once for a block of rows.
bool Matmul::in_blocks(int64_t n_rows) const { return isa_ == Isa::kAvx2 && n_rows > kFewRows; }

// Kernels that widen bf16 take f32 as it is: values of codes are then exact, and cheaper to make.
DType Matmul::operand_dtype() const { return isa_ < Isa::kAvx512Bf16 ? DType::kF32 : compute_dtype_; }

int64_t Matmul::quantised_scratch_bytes(int64_t n_rows, int64_t n_in, bool ordered) const {
  const int64_t n_coded = std::min(n_rows, most_coded_rows());
  int64_t bytes = 0, of_thread = 0;
  if (n_coded > 0) {
    const bool in_tiles = in_code_tiles(n_coded);
    bytes += CodedRows::bytes(n_coded, n_in, in_tiles ? kCodedGroup : coded_group(n_coded));
    if (in_tiles) of_thread = code_scratch_bytes(isa_);
  }
  if (ordered) bytes += n_rows * n_in * dtype_bytes(compute_dtype_);
  if (n_rows > n_coded) {
    if (operand_dtype() != compute_dtype_ || in_blocks(n_rows)) bytes += n_rows * n_in * dtype_bytes(operand_dtype());
    if (in_blocks(n_rows)) of_thread = kBlockScratchBytes;
    of_thread += values_bytes(n_in, operand_dtype());
    if (on_amx(n_rows)) bytes += amx_memory_bytes(n_rows, n_in);
  }
  return bytes + n_threads() * of_thread;
}

void Matmul::run(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  CHECK(w.packed() && w.dtype == compute_dtype_ && x.dtype == compute_dtype_);
  CHECK(y.dtype == compute_dtype_ || y.dtype == DType::kF32);
  CHECK(x.row_size() == w.n_in && y.row_size() == w.n_out && x.rows() == y.rows());
  const auto [bias, act, residual] = epilogue;
  CHECK(bias == nullptr || (bias->numel() == w.n_out && bias->dtype == compute_dtype_));
  CHECK(residual == nullptr ||
        (residual->rows() == y.rows() && residual->row_size() == w.n_out && residual->dtype == y.dtype));
  if (y.numel() == 0) return;
  if (w.segments.size() == 1) return run_segment(x, w, w.segments[0], y, epilogue);
  int64_t first = 0;
  for (const WeightSegment& segment : w.segments) {
    const int64_t n = segment.n_out;
    Tensor bias_part, residual_part;
    Epilogue part{.act = act};
    if (bias != nullptr) {
      bias_part = Tensor(bias->data + first * dtype_bytes(bias->dtype), bias->dtype, {n});
      part.bias = &bias_part;
    }
    if (residual != nullptr) {
      residual_part = outputs_of(*residual, first, n);
      part.residual = &residual_part;
    }
    run_segment(x, w, segment, outputs_of(y, first, n), part);
    first += n;
  }
}

void Matmul::run_segment(const Tensor& x, const Weight& w, const WeightSegment& segment, const Tensor& y,
                         const Epilogue& epilogue) {
  if (segment.form) {
    const QuantPanels panels = quant_panels_of(w, segment);
    const Tensor input = ordered(x, segment.input_order);
    return x.rows() <= most_coded_rows() ? by_codes(input, panels, y, epilogue) : by_values(input, panels, y, epilogue);
  }
  by_panels(x, panels_of(w, segment), y, epilogue);
}

void Matmul::by_panels(const Tensor& x, const Panels& w, const Tensor& y, const Epilogue& epilogue) {
  by_panels_of({isa_, w}, x.view({x.rows(), w.n_in}), y, epilogue);
}

void Matmul::by_values(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue) {
  const Panels values{nullptr, operand_dtype(), w.n_out, w.layout.n_in};
  by_panels_of({isa_, values, &w}, x.view({x.rows(), w.layout.n_in}), y, epilogue);
}

void Matmul::by_panels_of(const PanelSource& w, const Tensor& x, const Tensor& y, const Epilogue& epilogue) {
  const bool small = is_small(x.rows(), w.values), of_bf16 = operand_dtype() == DType::kBF16;
  if (of_bf16 && on_amx(x.rows()) && !small) return multiply_on_amx(w, x, y, epilogue, amx_);
  if (in_blocks(x.rows()) && !small) {
    float* rows = reinterpret_cast<float*>(x_copy_.get(x.numel() * int64_t{sizeof(float)}));
    interleave_rows(isa_, x, rows);
    for (Scratch& memory : of_threads(blocks_)) memory.get(kBlockScratchBytes);
    return multiply_in_blocks(w, rows, y, epilogue, blocks_);
  }
  if (w.quantised()) {
    for (Scratch& panel : of_threads(values_)) panel.get(values_bytes(w.values.n_in, w.values.dtype));
  }
  const Tensor input = x.dtype == operand_dtype() ? x : dense(x, operand_dtype());
  run_panels({isa_, input.data, input.stride, dtype_bytes(input.dtype), input.rows(), w, values_, y, epilogue});
}

CodedRows Matmul::coded(QuantIsa isa, const Tensor& x, const CodedAs& as, int64_t group, std::byte* memory) {
  const int64_t n = x.rows(), n_in = x.row_size();
  const CodedRows rows(memory, n, n_in, group);
  for (int64_t row = n; row < round_up(n, group); ++row) {  // rows of the last group that nothing reads
    for (int64_t u = 0; u < rows.n_units; ++u) rows.sums[rows.at(row, u)] = {};
  }
  if (n > 1 && n * n_in > 2 * kCodedPerThread) {
    parallel_ranges(n, round_up(kCodedPerThread / n_in + 1, group), [&](int64_t begin, int64_t end, int) {
      code_rows(isa, x.slice_rows(begin, end), as, rows.part(begin, end));
    });
  } else {
    code_rows(isa, x, as, rows);
  }
  return rows;
}

Matmul::CodedProduct Matmul::prepare(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue,
                                     std::byte* memory) const {
  const bool few = x.rows() <= quant_rows({isa_, codes_.byte_dots}),
             one_byte = !few && codes_.activation_bits == ActivationBits::k8;
  const CodedAs as{w.layout.form, codes_.activation_bits, one_byte};
  return {coded({isa_, codes_.byte_dots}, x, as, coded_group(x.rows()), memory), w, y, epilogue, few, one_byte};
}

// With panels [begin, end).
void Matmul::multiply(const CodedProduct& product, int64_t begin, int64_t end) const {
  const auto& [rows, w, y, epilogue, few, one_byte] = product;
  const QuantIsa isa{isa_, codes_.byte_dots};
  const int64_t n = rows.n_rows, at_once = kRowsInL1 / rows.group * rows.group;
  alignas(64) float sums[kRowsInL1 * kPanel];
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t row = 0; row < n; row += at_once) {
      const int64_t n_rows = std::min(at_once, n - row), column = p * kPanel;
      const QuantPanelArgs args{rows, row, n_rows, w.layout, w.panel(p), sums};
      few ? quant_panel(isa, args) : quant_groups(isa, args, one_byte);
      finish_tile(isa_, {sums, kPanel, row, n_rows, column, std::min(kPanel, w.n_out - column)}, epilogue, y);
    }
  }
}

void Matmul::by_codes(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue) {
  const int64_t n = x.rows();
  if (in_code_tiles(n)) return by_code_tiles(x, w, y, epilogue);
  std::byte* memory = coded_.get(CodedRows::bytes(n, w.layout.n_in, coded_group(n)));
  const CodedProduct product = prepare(x, w, y, epilogue, memory);
  const CodePieces pieces(w, 1);
  parallel_for(pieces.n, [&](int64_t i, int) { multiply(product, pieces.begin(i), pieces.end(i)); });
}

// As many rows in all as one product multiplies with codes, so that they take no more memory than its rows.
bool Matmul::run_groups(const Tensor& x, std::span<const Weight> weights, std::span<const int32_t> offsets,
                        const Tensor& y) {
  CHECK(offsets.size() == weights.size() + 1 && offsets.front() == 0 && offsets.back() == x.rows());
  if (x.rows() == 0 || x.rows() > std::min(most_coded_rows(), kFewCodedRows)) return false;
  const WeightSegment* first = nullptr;
  int64_t n_groups = 0;
  for (size_t g = 0; g < weights.size(); ++g) {
    if (offsets[g] == offsets[g + 1]) continue;
    if (offsets[g + 1] - offsets[g] > kMostGrouped || weights[g].segments.size() != 1) return false;
    const WeightSegment& segment = weights[g].segments[0];
    if (first == nullptr) first = &segment;
    if (!segment.form || segment.form != first->form || !segment.input_order.empty()) return false;
    ++n_groups;
  }
  CHECK(x.dtype == compute_dtype_ && (y.dtype == compute_dtype_ || y.dtype == DType::kF32) && x.rows() == y.rows());
  const int64_t n_in = x.row_size(), row_bytes = CodedRows::bytes(1, n_in, 1);
  std::byte* memory = coded_.get(x.rows() * row_bytes);
  groups_.clear();
  groups_.reserve(static_cast<size_t>(kFewCodedRows));  // once: decode steps allocate nothing
  for (size_t g = 0; g < weights.size(); ++g) {
    const int64_t begin = offsets[g], end = offsets[g + 1];
    if (begin == end) continue;
    const Weight& w = weights[g];
    CHECK(w.packed() && w.dtype == compute_dtype_ && w.n_in == n_in && w.n_out == y.row_size());
    groups_.push_back(prepare(x.slice_rows(begin, end), quant_panels_of(w, w.segments[0]), y.slice_rows(begin, end), {},
                              memory + begin * row_bytes));
  }
  const CodePieces pieces(groups_[0].w, n_groups);
  parallel_for(n_groups * pieces.n, [&](int64_t i, int) {
    const int64_t piece = i % pieces.n;
    multiply(groups_[static_cast<size_t>(i / pieces.n)], pieces.begin(piece), pieces.end(piece));
  });
  return true;
}

void Matmul::by_code_tiles(const Tensor& x, const QuantPanels& w, const Tensor& y, const Epilogue& epilogue) {
  const int64_t n_in = w.layout.n_in, n_out = w.n_out;
  const QuantIsa isa{isa_, codes_.byte_dots};
  const bool words = tile_has_words(isa, w.layout.form, codes_.activation_bits);
  const CodedAs as{w.layout.form, codes_.activation_bits, codes_.activation_bits == ActivationBits::k8, words};
  const CodedRows rows =
      coded({isa_, !words}, x, as, kCodedGroup, coded_.get(CodedRows::bytes(x.rows(), n_in, kCodedGroup)));
  for (Scratch& memory : of_threads(blocks_)) memory.get(code_scratch_bytes(isa_));
  const Tiling tiles = tiles_of(rows.n_rows, n_out, {.most_rows = code_tile_rows(isa_), .row_unit = kCodedGroup});
  tiles.for_each([&](const Columns& columns, int64_t begin, int64_t end, int thread) {
    std::byte* memory = blocks_[static_cast<size_t>(thread)].get(0);
    const Tile shape{columns, round_up(end - begin, kCodedGroup), n_in, code_tile_inputs(words)};
    const auto multiply = [&](const Block& block, const Block& next, float* sums) {
      if (block.first == 0) std::fill_n(sums, shape.n_rows * kPanel, 0.0f);
      const CodeTile tile = read_code_tile(isa_, w.layout, {w.panel(block.panel), block.first, words}, memory);
      CodeTileArgs args{rows, begin, end - begin, block.first / kUnit, tile, codes_.activation_bits, sums};
      if (next.panel >= 0) args.next = w.inputs(next.panel, next.first, shape.block_inputs);
      multiply_code_tile(isa, args);
    };
    const auto finish = [&](int64_t panel, const float* sums) {
      const int64_t column = panel * kPanel;
      finish_tile(isa_, {sums, kPanel, begin, end - begin, column, std::min(kPanel, n_out - column)}, epilogue, y);
    };
    for_blocks(shape, reinterpret_cast<float*>(memory + kCodeTileBytes), multiply, finish);
  });
}

Tensor Matmul::ordered(const Tensor& x, const std::vector<int32_t>& order) {
  if (order.empty()) return x;
  const Tensor y(x_ordered_.get(x.numel() * dtype_bytes(x.dtype)), x.dtype, {x.rows(), x.row_size()});
  gather_columns(x, order, y);
  return y;
}

Tensor Matmul::dense(const Tensor& x, DType dtype) {
  const Tensor rows = x.view({x.rows(), x.row_size()});
  if (x.dtype == dtype && x.dense()) return rows;
  const Tensor copy(x_copy_.get(x.numel() * dtype_bytes(dtype)), dtype, {x.rows(), x.row_size()});
  convert(isa_, rows, copy);
  return copy;
}

}  // namespace vlcache::cpu
