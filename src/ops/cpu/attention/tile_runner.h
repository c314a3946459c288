// TileRunner: runs tiles on all threads, and owns the memory for it. It only grows, so that a decode step allocates
// nothing.
#pragma once

#include <span>
#include <vector>

#include "base/buffer.h"
#include "ops/cpu/attention/tile.h"

namespace vlcache::cpu {

// A tile, and how its pages are cut into items.
struct PlannedTile {
  Tile tile;
  int64_t n_items = 0;
  int64_t first_item = 0;
  int64_t sums = -1;  // floats into the shared sums, of the first item's; -1: nothing to merge, they stay in scratch
  // Its PlannedRows: [first_rows, first_rows + n_rows) of a list.
  int32_t first_rows = 0, n_rows = 0;
};

// Rows of q, query_head to query_head + group - 1 of n_tokens, and the parts whose merged sums are their attention:
// tiles that have them as some of their tokens, over disjoint pages. merge_attention (ops/backend.h) defines a merge.
struct PlannedRows {
  static constexpr int kMostParts = 3;  // pages shared at two levels, and a sequence's own
  struct Part {
    int32_t tile, token;  // the first of n_tokens
  };
  const AttentionArgs* args = nullptr;
  int64_t row = 0;
  int query_head = 0, group = 1, n_tokens = 1;
  Part parts[kMostParts];
  int n_parts = 0;
  int32_t unfinished = 0;  // items of the parts still to run; the thread that takes it to 0 merges and writes
};

class TileRunner {
 public:
  TileRunner(Isa isa, bool byte_dots);

  // Kernels by compute dtype. Those for f32 never round queries and weights to bf16, not even with bf16 pages.
  const AttentionKernels& kernels(DType compute) const {
    return compute == DType::kBF16 ? bf16_kernels_ : f32_kernels_;
  }

  // Tokens per tile so that n_tokens tokens of `group` rows each are cut evenly; coded: most pages are codes.
  int tokens_per_tile(DType compute, int64_t n_tokens, int group, bool coded) const;

  // Attention of all tiles added since clear(); they are placed and write different rows.
  void clear() { tiles_.clear(), rows_.clear(), tile_rows_.clear(); }
  void add(const Tile& tile);
  // The tile as one more part of `rows`, numbers that add_rows() returned: of one, which has all its tokens, or of one
  // for each token.
  void add(const Tile& tile, std::span<const int32_t> rows);
  int32_t add_rows(const PlannedRows& rows);
  void run(const Tensor& q, const Tensor& out, const Tensor& lse);  // lse may be empty

  // Scratch for every thread, and shared memory, for other work on tiles of up to n_rows rows. Valid until the next
  // call that requests some.
  void reserve(int64_t n_rows, int64_t head_dim);
  TileScratch scratch(int thread) const;
  std::byte* shared(int64_t bytes) { return grow(shared_, bytes); }
  // A buffer that run() does not touch.
  std::byte* pages(int64_t bytes) { return grow(pages_, bytes); }

  int64_t bytes() const;  // held at the moment

 private:
  static std::byte* grow(Buffer& buffer, int64_t bytes);
  int64_t cut();  // cuts tiles into items; returns the number of floats of shared sums
  void run_item(int64_t index, int thread, const Tensor& q, const Tensor& out, const Tensor& lse);
  TileSums merge_parts(const PlannedRows& rows) const;
  TileSums shared_sums(const PlannedTile& planned, int64_t item, int64_t first_row = 0) const;

  AttentionKernels bf16_kernels_, f32_kernels_;
  std::vector<PlannedTile> tiles_;
  std::vector<PlannedRows> rows_;
  std::vector<int32_t> tile_rows_;  // numbers of PlannedRows, a tile's after another's
  std::vector<int32_t> items_;      // the tile of each item; a tile's items are consecutive
  Buffer scratch_;                  // per thread
  int64_t scratch_rows_ = 0, scratch_dim_ = 0, scratch_stride_ = 0;
  Buffer shared_;  // sums of items that share a tile
  Buffer pages_;
};

}  // namespace vlcache::cpu
