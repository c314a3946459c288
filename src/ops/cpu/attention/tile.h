// Defines a tile and the walk over its pages, shared by attention, vision attention and statistics. README.md has the
// drawing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/backend.h"
#include "ops/cpu/attention/kernels.h"

namespace vlcache::cpu {

// Tiles of few rows (decode) take one page at a time, while the next one is fetched into L1: 28-32 GB/s of one core's
// 31-34, against 17-20 with blocks of four pages, which do not fit beside their successors.
inline constexpr int kFewRows = 24;
inline constexpr int kFewCodedPages = 2;  // kBlockPages of int4, half as large

struct Interval {
  int64_t lowest, highest;
};

// Which pages of a tile can be seen at all: [0, n_sinks) and [n_sinks + gap, n_sinks + gap + rest), numbered without
// the gap.
struct PageRange {
  int64_t n_sinks = 0;
  int64_t gap = 0;
  int64_t size = 0;
  int64_t page(int64_t i) const { return i < n_sinks ? i : i + gap; }
  // How many of the pages lie before page p.
  int64_t n_before(int64_t p) const { return std::min(size, p <= n_sinks ? p : std::max(n_sinks, p - gap)); }
};

// Some tokens' query heads of one kv head, stacked as rows: row r is token r / group, head query_head + r % group.
struct Tile {
  const KvView* kv = nullptr;
  const AttentionArgs* args = nullptr;
  int head = 0;        // kv head
  int query_head = 0;  // the first of `group` query heads
  int group = 1;
  int64_t row = 0;                // row of q of the first token
  const int32_t* rows = nullptr;  // [n_tokens] rows of q; null: from `row` on
  int n_tokens = 0;
  // Slots [0, limit(t)) exist for token t; it may be negative. It is n_seen + causal_step t, or computed from
  // `n_after`.
  int64_t n_seen = 0;
  int causal_step = 1;               // 0: every token sees all slots (vision)
  const int32_t* n_after = nullptr;  // [n_tokens] as in AttentionSeq
  float* logits = nullptr;           // one token: those of query_head, as in AttentionSeq
  int64_t logits_stride = 0;
  bool counts = false;  // weights are compared with limits: q is not rounded further, to bf16 after its rotation
  // Pages [first_page, end_page) alone; without a window.
  int64_t first_page = 0, end_page = INT64_MAX;

  // Set by place(): limits and, with a window, positions of all tokens, and the pages that some token sees.
  Interval limits{0, 0}, positions{0, 0};
  PageRange pages;
  int32_t coded_end = 1;  // pages [1, coded_end) are seen as codes, where both forms are there
  void place();           // to be called after everything above is set

  int n_rows() const { return n_tokens * group; }
  int64_t q_row(int64_t token) const { return rows != nullptr ? rows[token] : row + token; }
  int64_t limit(int64_t token) const {
    return n_after != nullptr ? kv->n_slots[head] - n_after[token] : n_seen + causal_step * token;
  }
  int64_t position(int64_t token) const {
    return args->positions != nullptr ? args->positions[q_row(token)] : limit(token) - 1;
  }
  // Pages of a block, at most.
  int block_pages(KvCodec codec) const {
    if (n_rows() > kFewRows || codec == KvCodec::kInt4) return kBlockPages;
    return is_coded(codec) ? kFewCodedPages : 1;
  }

  // Tokens [begin, end), placed.
  Tile part(int begin, int end) const;
  // The least begin such that tokens [begin, end) see the same pages as codes.
  int part_begin(int end) const;
};

constexpr uint64_t low_bits(int64_t n) { return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1; }
// Bit j: token sees slot 64 page + j, by limit and window.
uint64_t seen_mask(const Tile& tile, int64_t token, int64_t page);

// Pages of one codec that are processed together; page i holds columns [64 i, 64 i + 64).
struct Block {
  int n_pages = 0;
  KvCodec codec = KvCodec::kBF16;
  QueryForm query = QueryForm::kBF16;
  int64_t index[kBlockPages];
  bool masked[kBlockPages];      // some token does not see some slot
  uint64_t hidden[kBlockPages];  // bit j: slot 64 index + j is hidden by its bias
  bool biased = false;           // some slot that is not hidden has a bias
  const std::byte* k[kBlockPages];
  const std::byte* v[kBlockPages];
  // [kBlockColumns] factors of scores, of int8 that load_block made bf16, and of weights, of int8; null: 1.
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  // Where rows of v, and so o, are rotated, the codec that rotates them so; else no coded one.
  KvCodec rotation = KvCodec::kF32;

  // Columns that a token with this limit may see: all pages but the last are full, or it sees no slot of the later
  // pages.
  int columns(int64_t limit) const;
};

// Walks an item, pages [begin, end) of tile.pages, block by block, skipping pages that no token sees.
class Walk {
 public:
  Walk(const Tile& tile, const AttentionKernels& kernels, int64_t begin, int64_t end)
      : tile_(tile), kernels_(kernels), begin_(begin), at_(begin), end_(end) {}
  Block next();  // empty at the end

  const Tile& tile() const { return tile_; }
  const AttentionKernels& kernels() const { return kernels_; }
  // The item's slots: from its first page to the next item's, including pages that no token sees.
  Interval slots() const;

 private:
  int block_pages(KvCodec codec) const;

  const Tile& tile_;
  const AttentionKernels& kernels_;
  int64_t begin_, at_, end_;
};

// Partial result over some slots, relative to 2^top: o [rows, dp] not normalised, top [rows], total [rows, 16].
struct TileSums {
  float* o = nullptr;
  float* top = nullptr;
  float* total = nullptr;
};

// One thread's memory, cut from a buffer. Rows: tile rows at most.
struct TileScratch {
  // Queries, [rows] by QueryForm; undefined if no page needs them.
  std::byte* q[kQueryForms] = {};
  std::byte* q_sinks[kQueryForms] = {};
  TileSums sums;
  float* s = nullptr;         // [kMostStripRows, kBlockColumns]
  float* sink_s = nullptr;    // [kMostStripRows, 64]
  std::byte* p = nullptr;     // [kMostStripRows, kBlockColumns] f32 or bf16
  float* bias = nullptr;      // [kBlockColumns]
  uint64_t* masks = nullptr;  // [kBlockPages, tokens]
  float* k_scale = nullptr;   // [kBlockColumns]
  float* v_scale = nullptr;   // [kBlockColumns]
  std::byte* wide = nullptr;  // f32 pages of a block

  // Cuts [0, result) of `base` (64-byte aligned) for tiles of n_rows rows; null base: the size alone.
  static int64_t layout(TileScratch& scratch, std::byte* base, int64_t n_rows, int64_t head_dim);
};

// H x of a row of d values, as a half of this codec has it, or divided by the blocks' sizes, which undoes it.
struct Rotation {
  KvCodec codec;
  bool divides;
};
void rotate_row(const AttentionKernels& kernels, const Rotation& rotation, int64_t d, float* x);

// What a tile's rows of q become for pages of a codec.
QueryForm query_form(const Tile& tile, const AttentionKernels& kernels, KvCodec codec);
// Packs the tile's rows of q, and of q_sinks, in the forms that its pages need.
void pack_queries(const Tile& tile, const AttentionKernels& kernels, const Tensor& q, const TileScratch& scratch);

// Prepares what a block needs before its strips: masks of partly seen pages, biases.
void prepare_block(const Tile& tile, const Block& block, const TileScratch& scratch);

// Where no kernel reads a block's pages as they are, or many rows read another form faster: makes these once, for all
// strips, in scratch.wide; of K alone unless `values`.
void load_block(const Walk& walk, const TileScratch& scratch, bool values, Block& block);

// Rows [row, row + m) of the tile, for a kernel call, and the results of score_strip.
struct Strip {
  int index;
  int row;
  int m;
  int n = 0;            // columns that any row sees; 0: nothing was computed
  float scale = 1.0f;   // factor still to apply to the scores: then they are logits in base 2
  int columns() const;  // n in whole vectors, what kernels take
};

// How a tile's rows are cut for kernel calls over pages of a codec.
class Strips {
 public:
  Strips(const Tile& tile, const AttentionKernels& kernels, KvCodec codec);
  int size() const { return size_; }
  Strip operator[](int i) const;

 private:
  int n_rows_, most_, size_;
};

// Computes the masked scores of a strip over a block into scratch.s. Meanwhile `next`, if not null, is prefetched.
void score_strip(const Walk& walk, const Block& block, Strip& strip, const Block* next, const TileScratch& scratch);

// Computes the attention of a tile over an item's pages into `sums`, which it overwrites; queries are packed.
void attend(Walk walk, const TileScratch& scratch, const TileSums& sums);

}  // namespace vlcache::cpu
