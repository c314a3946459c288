// A tile: some tokens' query heads of one kv head, stacked as rows, against a range of pages. What attention, vision
// attention and statistics share: who sees what, packed queries, scores of a strip.
#pragma once

#include <cstdint>
#include <span>

#include "ops/backend.h"
#include "ops/cpu/attention_kernels.h"

namespace vlcache::cpu {

// Pages between two softmax steps, at most. Tiles of few rows (decode) take one at a time, while the next one is
// fetched into L1: 28-32 GB/s of one core's 31-34, against 17-20 with four pages, which do not fit beside their
// successors.
inline constexpr int kBlockPages = 4;
inline constexpr int kFewRows = 24;
inline constexpr int kBlockColumns = kBlockPages * kPageSlots;

struct Interval {
  int64_t lowest, highest;
};

struct Tile {
  const KvView* kv = nullptr;
  const AttentionArgs* args = nullptr;
  int head = 0;        // kv head
  int query_head = 0;  // the first of `group` query heads; tile row r is token r / group, head query_head + r % group
  int group = 1;
  int64_t row = 0;  // of q: the first token
  int n_tokens = 0;
  // Slots [0, limit(t)) exist for token t, which may be negative: n_seen + causal_step t, or what `behind` leaves.
  int64_t n_seen = 0;
  int causal_step = 1;              // 0: every token sees all slots (vision)
  const int32_t* behind = nullptr;  // [n_tokens] as in AttentionSeq
  float* logits = nullptr;          // one token: those of query_head, as in AttentionSeq
  int64_t logits_stride = 0;
  Interval limits{0, 0}, positions{0, 0};  // of all tokens; place() fills them in

  int n_rows() const { return n_tokens * group; }
  int64_t limit(int64_t token) const {
    return behind != nullptr ? kv->n_slots[head] - behind[token] : n_seen + causal_step * token;
  }
  int block_pages() const { return n_rows() <= kFewRows ? 1 : kBlockPages; }
  // Rows per kernel call. Five suit five vectors of V (head_dim 72 and 80): 25 accumulators, and V is read once.
  int strip_rows() const { return (kv->head_dim + 15) / 16 == 5 ? 5 : kStripRows; }
  int n_strips() const { return (n_rows() + strip_rows() - 1) / strip_rows(); }
  int64_t position(int64_t token) const {
    return args->positions != nullptr ? args->positions[row + token] : limit(token) - 1;
  }
  void place();  // to be called when everything else is set
};

// Which pages of a tile can be seen at all: [0, n_sinks) and [n_sinks + gap, n_sinks + gap + rest), numbered without
// the gap.
struct PageRange {
  int64_t n_sinks = 0;
  int64_t gap = 0;
  int64_t size = 0;
  int64_t page(int64_t i) const { return i < n_sinks ? i : i + gap; }
};
PageRange visible_pages(const Tile& tile);

enum class Sight : uint8_t { kNone, kSome, kAll };
// What the tile's tokens see of a page; kSome when in doubt.
Sight sight(const Tile& tile, int64_t page);
// Bit j: token sees slot 64 page + j.
uint64_t seen_mask(const Tile& tile, int64_t token, int64_t page);

// Some pages of one codec that are worked on together; page i holds columns [64 i, 64 i + 64).
struct Block {
  int n_pages = 0;
  KvCodec codec = KvCodec::kBF16;
  int64_t index[kBlockPages];
  Sight sights[kBlockPages];
  uint64_t hidden[kBlockPages];  // bit j: slot 64 index + j is hidden by its bias
  bool biased = false;           // some slot that is not hidden has a bias
  const std::byte* k[kBlockPages];
  const std::byte* v[kBlockPages];

  // Columns that a token with this limit may see: all pages but the last are full, or it sees nothing of the later
  // ones.
  int columns(int64_t limit) const;
};

// Walks pages [begin, end) of a range block by block, past those that nobody sees.
class BlockWalk {
 public:
  BlockWalk(const Tile& tile, const AttentionKernels& kernels, const PageRange& range,
            std::span<const int64_t, 2> pages)
      : tile_(tile), kernels_(kernels), range_(range), at_(pages[0]), end_(pages[1]) {}
  Block next();  // empty at the end

 private:
  const Tile& tile_;
  const AttentionKernels& kernels_;
  const PageRange& range_;
  int64_t at_, end_;
};

// One thread's memory, cut from a buffer. Rows: tile rows at most.
struct TileScratch {
  // Queries [rows, head_dim] by operand dtype (bf16, f32), as packed; null if no page needs them.
  std::byte* q[2] = {};
  std::byte* q_sinks[2] = {};
  float* o = nullptr;         // [rows, dp]
  float* top = nullptr;       // [rows]
  float* total = nullptr;     // [rows, 16]
  float* s = nullptr;         // [kStripRows, kBlockColumns]
  float* sink_s = nullptr;    // [kStripRows, 64]
  std::byte* p = nullptr;     // [kStripRows, kBlockColumns] f32 or bf16
  float* bias = nullptr;      // [kBlockColumns]
  uint64_t* masks = nullptr;  // [kBlockPages, tokens]

  // Cuts [0, result) of `base` (64-byte aligned) for tiles of n_rows rows; null base: the size alone.
  static int64_t layout(TileScratch& scratch, std::byte* base, int64_t n_rows, int64_t head_dim);
};

// Packs the tile's rows of q, and of q_sinks, in the operand dtypes its pages need.
void pack_queries(const Tile& tile, const AttentionKernels& kernels, const Tensor& q, const TileScratch& scratch);

// What a block needs before its strips: masks of partly seen pages, biases.
void prepare_block(const Tile& tile, const Block& block, const TileScratch& scratch);

// Rows [row, row + m) of the tile.
struct Strip {
  int index;
  int row;
  int m;
};
inline Strip strip_at(const Tile& tile, int i) {
  const int n = tile.n_strips(), begin = tile.n_rows() * i / n;
  return {i, begin, tile.n_rows() * (i + 1) / n - begin};
}

// Scores of a strip over a block into scratch.s, masked; `scale` is what is left to multiply them with (base 2 logits).
struct StripScores {
  int n;  // columns that some row of the strip sees; 0: nothing was computed
  float scale;
};
StripScores score_strip(const Tile& tile, const AttentionKernels& kernels, const Block& block, const Strip& strip,
                        const Block* next, const TileScratch& scratch);

// Partial result over some pages: o [rows, dp] not normalised, top [rows], total [rows, 16].
struct TileSums {
  float* o;
  float* top;
  float* total;
};
// Attention of the tile over pages [begin, end) of the range, added up from nothing.
void attend(const Tile& tile, const AttentionKernels& kernels, const PageRange& range,
            std::span<const int64_t, 2> pages, const TileScratch& scratch, const TileSums& sums);

}  // namespace vlcache::cpu
