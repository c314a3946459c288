// What AttentionWorkspace holds between calls. Everything only grows.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/attention_tile.h"

namespace vlcache::cpu {

// A part of a tile's pages, the unit of work that threads take. Parts of one tile follow one another.
struct AttentionItem {
  int32_t tile;
  int64_t pages[2];  // of the tile's PageRange
};

struct PlannedTile {
  Tile tile;
  PageRange range;
  int64_t n_items = 0;
  int64_t first_item = 0;
  int64_t partials = -1;   // floats into `partials` of the first item's sums; -1: one item, no partial sums
  int32_t unfinished = 0;  // items still to do; whoever takes it to 0 joins them
};

struct AttentionWorkspace::State {
  // By compute dtype. Those for f32 never round queries and weights to bf16, not even beside bf16 pages.
  AttentionKernels bf16_kernels;
  AttentionKernels f32_kernels;
  std::vector<PlannedTile> tiles;
  std::vector<AttentionItem> items;
  Buffer partials;  // sums of items that share a tile
  Buffer scratch;   // per thread
  Buffer pages;     // dense_attention: K and V of an image as pages; statistics: packed queries
  std::vector<int32_t> page_ids;

  const AttentionKernels& kernels(DType compute) const { return compute == DType::kBF16 ? bf16_kernels : f32_kernels; }

  static std::byte* grow(Buffer& buffer, int64_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
    return buffer.data();
  }
};

// Threads' scratch for tiles of n_rows rows, one after the other.
struct ScratchPool {
  std::byte* base;
  int64_t n_rows, head_dim, stride;

  ScratchPool(AttentionWorkspace::State& state, int n_threads, int64_t n_rows, int64_t head_dim);
  TileScratch get(int thread) const {
    TileScratch scratch;
    TileScratch::layout(scratch, base + thread * stride, n_rows, head_dim);
    return scratch;
  }
};

// Runs what is planned in state.tiles: cuts tiles into items of similar cost, and writes out and args.lse.
void run_tiles(AttentionWorkspace::State& state, const Tensor& q, const AttentionArgs& args, const Tensor& out);

// Tokens per tile when n_tokens tokens of `group` rows each are to be cut evenly.
int tokens_per_tile(int64_t n_tokens, int group);

}  // namespace vlcache::cpu
