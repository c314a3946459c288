#include "ops/cpu/matmul/block_product.h"

#include <algorithm>

#include "ops/cpu/matmul/epilogue.h"
#include "ops/cpu/matmul/tiling.h"

namespace vlcache::cpu {

void multiply_in_blocks(const PanelSource& w, const float* rows, const Tensor& y, const Epilogue& epilogue,
                        std::vector<Scratch>& memory) {
  const int64_t n_in = w.values.n_in, n_out = w.values.n_out, n = y.rows();
  const Tiling tiles = tiles_of(n, n_out, {.most_rows = kTileRows, .row_unit = kGroupRows});
  tiles.for_each([&](const Columns& columns, int64_t begin, int64_t end, int thread) {
    float* strips = reinterpret_cast<float*>(memory[static_cast<size_t>(thread)].get(kBlockScratchBytes));
    const auto width = [&](int64_t panel) { return std::min(kPanel, n_out - panel * kPanel); };
    const auto multiply = [&](const Block& block, const Block& next, float* sums) {
      w.widen(block.panel, block.first, strips);
      BlockArgs args{.x = rows + interleaved_at(n, n_in, begin, block.first),
                     .n_rows = end - begin,
                     .n_inputs = std::min(kBlockInputs, n_in - block.first),
                     .strips = strips,
                     .columns = round_up(width(block.panel), kStrip),
                     .begin = block.first == 0,
                     .sums = sums};
      if (next.panel >= 0) args.next = w.block(next.panel, next.first);
      multiply_block(w.isa, args);
    };
    const auto finish = [&](int64_t panel, const float* sums) {
      finish_tile(w.isa, {sums, kPanel, begin, end - begin, panel * kPanel, width(panel)}, epilogue, y);
    };
    for_blocks({columns, end - begin, n_in}, strips + kPanel / kStrip * kStripFloats, multiply, finish);
  });
}

}  // namespace vlcache::cpu
