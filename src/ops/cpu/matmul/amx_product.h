// Declares products of many rows of bf16 on AMX: a block of weights stays in L2 while the rows, as tiles, pass by it.
#pragma once

#include <vector>

#include "ops/backend.h"
#include "ops/cpu/matmul/panel_source.h"
#include "ops/cpu/scratch.h"

namespace vlcache::cpu {

// Memory of such products, kept from one to the next.
struct AmxMemory {
  Scratch rows;                    // x as tiles
  std::vector<Scratch> of_thread;  // values of a block of quantised panels, sums of a block

  int64_t bytes() const;
};

// What AmxMemory grows to at most by products of up to n_rows rows with quantised matrices of up to n_in inputs.
int64_t amx_memory_bytes(int64_t n_rows, int64_t n_in);

// y = act(x W^T + bias) + residual. x [n, n_in] bf16; its rows may be strided. Sums run over n_in in one order,
// whatever the number of rows and the blocks. Requires Isa::kAmxBf16. `block_bytes`: of a block of weights at most,
// half of L2 if 0.
void multiply_on_amx(const PanelSource& w, const Tensor& x, const Tensor& y, const Epilogue& epilogue,
                     AmxMemory& memory, int64_t block_bytes = 0);

}  // namespace vlcache::cpu
