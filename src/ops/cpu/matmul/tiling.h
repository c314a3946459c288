// Cuts a product with many rows into tasks: tiles of some panels x a block of rows.
#pragma once

#include <algorithm>
#include <functional>

#include "base/os/threads.h"
#include "ops/cpu/packed.h"

namespace vlcache::cpu {

struct Tiling {
  int64_t n_out, n_rows;
  int64_t columns, rows;  // of a tile; the last ones of each may be smaller

  int64_t n_groups() const { return (n_out + columns - 1) / columns; }
  int64_t n_blocks() const { return (n_rows + rows - 1) / rows; }

  // body(Columns, first row, last row, thread); the tiles of one block of rows run next to each other in time.
  template <typename Body>
  void for_each(const Body& body) const {
    const auto task = [&](int64_t i, int thread) {
      const int64_t column = i % n_groups() * columns, row = i / n_groups() * rows;
      body(Columns{column, std::min(n_out, column + columns)}, row, std::min(n_rows, row + rows), thread);
    };
    parallel_for(n_groups() * n_blocks(), std::ref(task));
  }
};

struct TilingRules {
  int64_t most_rows;  // of a block
  // Small enough that a disturbed core costs little.
  int64_t tasks_per_thread = 16;
  int64_t row_unit;
};

inline Tiling tiles_of(int64_t n_rows, int64_t n_out, const TilingRules& rules) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel, n_tasks = rules.tasks_per_thread * n_threads();
  const int64_t most_rows = rules.most_rows;
  int64_t n_blocks = (n_rows + most_rows - 1) / most_rows;
  const int64_t panels = std::max<int64_t>(1, n_panels * n_blocks / n_tasks);
  const int64_t n_groups = (n_panels + panels - 1) / panels;
  if (n_groups * n_blocks < n_tasks)
    n_blocks = std::max(n_blocks, std::min(n_tasks / n_groups, n_rows / (4 * rules.row_unit)));
  return {n_out, n_rows, panels * kPanel, round_up((n_rows + n_blocks - 1) / n_blocks, rules.row_unit)};
}

}  // namespace vlcache::cpu
