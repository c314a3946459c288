// Declares products of many rows on vector units of 16 registers: blocks of weights, which caches hold, are walked past
// the rows of a tile.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/backend.h"
#include "ops/cpu/matmul/panel_source.h"
#include "ops/cpu/scratch.h"

namespace vlcache::cpu {

// Rows of a tile: kBlockInputs of each (192 KiB) and their sums with kTilePanels (192 KiB) lie in an L2 of 512 KiB,
// beside a block of widened weights (64 KiB).
inline constexpr int64_t kTileRows = 192;

// Panels whose blocks the rows of a tile pass before their next inputs: so often a row is read from L2.
inline constexpr int64_t kTilePanels = 4;

// Memory of a thread: a block of weights as strips, and the sums of a tile.
inline constexpr int64_t kBlockScratchBytes =
    int64_t{sizeof(float)} * (kPanel / kStrip * kStripFloats + kTilePanels * kTileRows * kPanel);

// y = act(x W^T + bias) + residual. rows: x as interleave_rows gives it. memory: kBlockScratchBytes for each thread.
void multiply_in_blocks(const PanelSource& w, const float* rows, const Tensor& y, const Epilogue& epilogue,
                        std::vector<Scratch>& memory);

// Some panels and rows of a product, in blocks of so many inputs.
struct Tile {
  Columns columns;
  int64_t n_rows, n_in;
  int64_t block_inputs = kBlockInputs;
};

// Inputs of a panel from `first` on.
struct Block {
  int64_t panel, first;
};

// Walks the blocks of a tile.
//   multiply(block, next, sums): adds the block's products to [n_rows, 64] sums, or begins them at input 0. `next`: the
//   block after it; its panel is negative after the last one.
//   finish(panel, sums)
// sums: [kTilePanels, n_rows, 64].
template <typename Multiply, typename Finish>
void for_blocks(const Tile& tile, float* sums, const Multiply& multiply, const Finish& finish) {
  const int64_t first_panel = tile.columns.begin / kPanel, end_panel = (tile.columns.end + kPanel - 1) / kPanel;
  for (int64_t begin = first_panel; begin < end_panel; begin += kTilePanels) {
    const int64_t end = std::min(end_panel, begin + kTilePanels);
    const auto sums_of = [&](int64_t panel) { return sums + (panel - begin) * tile.n_rows * kPanel; };
    for (int64_t first = 0; first < tile.n_in; first += tile.block_inputs) {
      for (int64_t panel = begin; panel < end; ++panel) {
        Block next{panel + 1, first};
        if (next.panel == end) next = {begin, first + tile.block_inputs};
        if (next.first >= tile.n_in) next = {end < end_panel ? end : -1, 0};
        multiply(Block{panel, first}, next, sums_of(panel));
      }
    }
    for (int64_t panel = begin; panel < end; ++panel) finish(panel, sums_of(panel));
  }
}

}  // namespace vlcache::cpu
