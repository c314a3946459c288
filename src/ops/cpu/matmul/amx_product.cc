// Cuts a product with many rows into tasks, these into blocks of weights, and walks the rows past each block.
//
// Tried on two cores of a Sapphire Rapids before it was built (weights not in a cache, percent of the peak;
// docs/studies/benchmarks.md): 512 rows of 2048 inputs 13 with panels one by one and x as it lies, 37 in blocks of 256
// outputs and 2048 inputs. While other tenants take the caches: 19 and 20; of 5632 inputs 12 and 13, and 9 without a
// cut of the inputs. Within a block, the order of outputs, inputs and rows changed little, and so did prefetching the
// next block between products.
#include "ops/cpu/matmul/amx_product.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/os/threads.h"
#include "ops/cpu/matmul/epilogue.h"
#include "ops/cpu/matmul/panel_kernel.h"

namespace vlcache::cpu {
namespace {

constexpr int64_t kStepBytes = kPanel * kAmxStep * 2;  // of a panel's step
constexpr int64_t kMostPanels = 4;                     // of a block
constexpr int64_t kMostRows = 512;                     // of a task: what bounds the sums that wait
constexpr int64_t kLeastRows = 128;                    // of a task, where there are as many
constexpr int64_t kTasksPerThread = 4;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t steps_of(int64_t n_in) { return ceil_div(n_in, kAmxStep); }
int64_t groups_of(int64_t n_rows) { return ceil_div(n_rows, kAmxGroup); }
int64_t row_group_bytes(int64_t n_in) { return steps_of(n_in) * kAmxGroup * kAmxStep * 2; }

int64_t half_of_l2() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  constexpr int64_t bytes = 0;
#endif
  return (bytes > 0 ? bytes : 2 << 20) / 2;
}

// How many panels and steps a block has, and how many rows and blocks a task.
struct Cut {
  int64_t panels, steps, rows;
  int64_t n_columns, n_row_blocks;  // tasks in either direction

  Cut(int64_t n_rows, int64_t n_in, int64_t n_out, int64_t block_bytes) {
    const int64_t n_panels = ceil_div(n_out, kPanel), n_tasks = kTasksPerThread * n_threads();
    panels = std::min(panels_for(n_rows), n_panels);
    n_row_blocks = ceil_div(n_rows, kMostRows);
    while (ceil_div(n_panels, panels) * n_row_blocks < n_tasks) {
      if (2 * n_row_blocks * kLeastRows <= n_rows) {
        n_row_blocks *= 2;
      } else if (panels > 1) {
        panels /= 2;
      } else {
        break;
      }
    }
    n_columns = ceil_div(n_panels, panels);
    rows = round_up(ceil_div(n_rows, n_row_blocks), kAmxGroup);
    n_row_blocks = ceil_div(n_rows, rows);
    const int64_t n_steps = steps_of(n_in);
    steps = ceil_div(n_steps, ceil_div(n_steps, most_steps(block_bytes)));
  }

  // Of a block, however few panels it has: a group of rows passes it from L2, too.
  static int64_t most_steps(int64_t block_bytes) {
    return std::max<int64_t>(1, block_bytes / (kMostPanels * kStepBytes));
  }

  // Few rows wait for memory: small tasks keep all threads at it.
  static constexpr int64_t panels_for(int64_t n_rows) { return n_rows <= 64 ? 1 : n_rows <= 256 ? 2 : kMostPanels; }
};

// Rows of x as panel_amx_group reads them.
void lay_out_rows(const Tensor& x, int64_t n_in, std::byte* to) {
  const int64_t whole = n_in / kAmxStep, left = n_in % kAmxStep, group_bytes = row_group_bytes(n_in);
  constexpr int64_t kLine = kAmxStep * 2, kTile = 16 * kLine;
  const auto lay_out = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < round_up(end, kAmxGroup); ++row) {
      const int64_t in_group = row % kAmxGroup;
      std::byte* line = to + row / kAmxGroup * group_bytes + in_group / 16 * kTile + in_group % 16 * kLine;
      if (row >= x.rows()) {
        for (int64_t step = 0; step < steps_of(n_in); ++step) std::memset(line + step * 2 * kTile, 0, kLine);
        continue;
      }
      const std::byte* from = x.data + row * x.stride * 2;
      for (int64_t step = 0; step < whole; ++step) std::memcpy(line + step * 2 * kTile, from + step * kLine, kLine);
      if (left == 0) continue;
      std::memset(line + whole * 2 * kTile, 0, kLine);
      std::memcpy(line + whole * 2 * kTile, from + whole * kLine, static_cast<size_t>(left) * 2);
    }
  };
  parallel_ranges(x.rows(), kAmxGroup, std::ref(lay_out));
}

// Reads memory front to back, as the hardware fetches it best, so that it lies in L2 when tiles are loaded in their
// order: 2 to 9 % of a product of 128 or 512 rows in those trials.
void fetch(const std::byte* p, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t at = 0; at < bytes; at += 64) {
    uint64_t word;
    std::memcpy(&word, p + at, sizeof(word));
    sum += word;
  }
  asm volatile("" : : "r"(sum));
}

class Product {
 public:
  Product(const PanelSource& w, const Tensor& x, const Tensor& y, const Epilogue& epilogue, AmxMemory& memory,
          int64_t block_bytes)
      : w_(w),
        y_(y),
        epilogue_(epilogue),
        n_rows_(x.rows()),
        n_in_(w.values.n_in),
        n_out_(w.values.n_out),
        cut_(n_rows_, n_in_, n_out_, block_bytes),
        memory_(memory),
        rows_(memory.rows.get(groups_of(n_rows_) * row_group_bytes(n_in_))) {
    lay_out_rows(x, n_in_, rows_);
    memory_.of_thread.resize(std::max(memory_.of_thread.size(), static_cast<size_t>(n_threads())));
    for (Scratch& scratch : memory_.of_thread) scratch.get(values_bytes() + sums_bytes());
  }

  // Tasks that share weights run next to each other in time.
  void run() const {
    const auto task = [&](int64_t i, int thread) {
      run(i / cut_.n_row_blocks * cut_.panels, i % cut_.n_row_blocks * cut_.rows, thread);
    };
    parallel_for(cut_.n_columns * cut_.n_row_blocks, std::ref(task));
  }

 private:
  int64_t values_bytes() const { return w_.quantised() ? cut_.panels * w_.values.panel_bytes() : 0; }
  bool sums_wait() const { return cut_.steps < steps_of(n_in_); }
  int64_t sums_bytes() const { return sums_wait() ? cut_.rows * cut_.panels * kPanel * 4 : 0; }

  // Panels [first_panel, + panels) of rows [first_row, + rows).
  void run(int64_t first_panel, int64_t first_row, int thread) const {
    const int64_t n_panels = std::min(cut_.panels, ceil_div(n_out_, kPanel) - first_panel);
    const int64_t end_row = std::min(n_rows_, first_row + cut_.rows), n_steps = steps_of(n_in_);
    std::byte* memory = memory_.of_thread[static_cast<size_t>(thread)].get(0);
    float* block_sums = reinterpret_cast<float*>(memory + values_bytes());
    const std::byte* panels[kMostPanels];
    for (int64_t p = 0; p < n_panels; ++p) panels[p] = w_.panel(first_panel + p, memory + p * w_.values.panel_bytes());
    alignas(64) float two_sums[2][kAmxGroup * kPanel];
    // A tile of sums is finished after the next one was multiplied: what tiles store is slow to be read at once.
    SumTile waiting{};
    const auto finish = [&] {
      if (waiting.sums != nullptr) finish_tile(w_.isa, waiting, epilogue_, y_);
    };
    int64_t n_done = 0;
    for (int64_t step = 0; step < n_steps; step += cut_.steps) {
      const int64_t steps = std::min(cut_.steps, n_steps - step);
      // Values that were made of codes just now lie in L2, unless they are more than a block.
      if (!w_.quantised() || sums_wait()) {
        for (int64_t p = 0; p < n_panels; ++p) fetch(panels[p] + step * kStepBytes, steps * kStepBytes);
      }
      for (int64_t row = first_row; row < end_row; row += kAmxGroup) {
        const std::byte* x = rows_ + row / kAmxGroup * row_group_bytes(n_in_) + step * kAmxGroup * kAmxStep * 2;
        const int64_t n_rows = std::min(kAmxGroup, end_row - row);
        for (int64_t p = 0; p < n_panels; ++p, ++n_done) {
          const int64_t column = (first_panel + p) * kPanel, n = std::min(kPanel, n_out_ - column);
          float* sums = sums_wait() ? block_sums + ((row - first_row) * cut_.panels + p * kAmxGroup) * kPanel
                                    : two_sums[n_done % 2];
          panel_amx_group({x, panels[p] + step * kStepBytes, steps, n_rows, n, step == 0, sums});
          if (step + steps < n_steps) continue;
          finish();
          waiting = {sums, kPanel, row, n_rows, column, n};
        }
      }
    }
    finish();
  }

  const PanelSource& w_;
  const Tensor& y_;
  const Epilogue& epilogue_;
  int64_t n_rows_, n_in_, n_out_;
  Cut cut_;
  AmxMemory& memory_;
  std::byte* rows_;
};

}  // namespace

int64_t AmxMemory::bytes() const {
  int64_t sum = rows.bytes();
  for (const Scratch& scratch : of_thread) sum += scratch.bytes();
  return sum;
}

int64_t amx_memory_bytes(int64_t n_rows, int64_t n_in) {
  const int64_t panels = Cut::panels_for(n_rows), values = panels * steps_of(n_in) * kStepBytes;
  const bool sums_wait = steps_of(n_in) > Cut::most_steps(half_of_l2());
  const int64_t sums = sums_wait ? std::min(round_up(n_rows, kAmxGroup), kMostRows) * panels * kPanel * 4 : 0;
  return groups_of(n_rows) * row_group_bytes(n_in) + n_threads() * (values + sums);
}

void multiply_on_amx(const PanelSource& w, const Tensor& x, const Tensor& y, const Epilogue& epilogue,
                     AmxMemory& memory, int64_t block_bytes) {
  Product(w, x, y, epilogue, memory, block_bytes > 0 ? block_bytes : half_of_l2()).run();
}

}  // namespace vlcache::cpu
