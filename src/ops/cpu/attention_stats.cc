// Statistics of the attention of a group of queries: one pass over the pages for every row's sum, one for the columns.
// Scores are computed twice and never stored beyond a block.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/threads.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/attention_workspace.h"

namespace vlcache::cpu {
namespace {

constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kMinItemPages = 8;
// Up to this many rows, all query heads of a kv head are one tile: K is then read twice instead of twice per head. With
// more it lies in L2 anyway, and a strip of one head's rows shares the sums of a column.
constexpr int64_t kGroupedRows = 96;

// What the first pass finds of a row over some pages, in base 2.
struct RowSums {
  float top;      // scale of `total`
  float total;    // sum of 2^(logit - top)
  float largest;  // logit
  float n_seen;   // slots
};

struct StatsRun {
  AttentionWorkspace::State& state;
  const ScratchPool& pool;
  const Tensor& q;
  const KvView& kv;
  const AttentionArgs& args;
  AttentionStats& stats;
  int tile_heads = 1;   // query heads of a tile
  int64_t n_parts = 1;  // of every tile's pages

  int64_t n_items() const { return q.dim(1) / tile_heads * n_parts; }
  // Query heads [index * tile_heads, ...) with all their rows.
  Tile tile(int64_t index) const {
    const int query_head = static_cast<int>(index) * tile_heads, n_rows = static_cast<int>(q.rows());
    const int head = query_head / static_cast<int>(q.dim(1) / kv.n_kv_heads);
    Tile tile{.kv = &kv,
              .args = &args,
              .head = head,
              .query_head = query_head,
              .group = tile_heads,
              .n_tokens = n_rows,
              .n_seen = int64_t{kv.n_slots[head]} - n_rows + 1,
              .behind = stats.behind};
    tile.place();
    return tile;
  }
  RowSums* sums(int64_t index, int64_t part) const {
    return reinterpret_cast<RowSums*>(state.partials.data()) + (index * n_parts + part) * q.rows() * tile_heads;
  }

  template <typename Visit>  // visit(block, strip, scores, columns rounded up to whole vectors)
  void sweep(const Tile& tile, int64_t part, const TileScratch& scratch, const Visit& visit) const {
    const AttentionKernels& kernels = state.kernels(q.dtype);
    const PageRange range = visible_pages(tile);
    const int64_t pages[2] = {range.size * part / n_parts, range.size * (part + 1) / n_parts};
    pack_queries(tile, kernels, q, scratch);
    BlockWalk walk(tile, kernels, range, pages);
    for (Block b = walk.next(); b.n_pages > 0; b = walk.next()) {
      prepare_block(tile, b, scratch);
      visit.begin(b);
      for (int i = 0; i < tile.n_strips(); ++i) {
        const Strip strip = strip_at(tile, i);
        const StripScores scores = score_strip(tile, kernels, b, strip, nullptr, scratch);
        if (scores.n > 0) visit.strip(b, strip, scores);
      }
      visit.end(b);
    }
  }

  void row_pass(int64_t item, int thread) const;
  void column_pass(int64_t item, int thread) const;
  void thresholds(int64_t index, const TileScratch& scratch) const;
};

// First pass over a block: rows' sums in scratch.top, .total and, for the maxima, .o.
struct RowVisit {
  const AttentionKernels& kernels;
  const Tile& tile;
  const TileScratch& scratch;
  RowSums* rows;

  void begin(const Block& block) const {
    for (int i = 0; i < block.n_pages; ++i) {
      for (int t = 0; t < tile.n_tokens; ++t) {
        const bool all = block.sights[i] == Sight::kAll;
        const int n = all ? kPageSlots : std::popcount(scratch.masks[i * tile.n_tokens + t]);
        for (int g = 0; g < tile.group; ++g) rows[t * tile.group + g].n_seen += static_cast<float>(n);
      }
    }
  }
  void strip(const Block&, const Strip& strip, const StripScores& scores) const {
    kernels.row_sums({.s = scratch.s,
                      .s_stride = kBlockColumns,
                      .m = strip.m,
                      .n = (scores.n + kLanes - 1) / kLanes * kLanes,
                      .scale = scores.scale,
                      .top = scratch.top + strip.row,
                      .total = scratch.total + strip.row * kLanes,
                      .largest = scratch.o + strip.row * kLanes});
  }
  void end(const Block&) const {}
};

void StatsRun::row_pass(int64_t item, int thread) const {
  const int64_t index = item / n_parts, part = item % n_parts;
  const Tile t = tile(index);
  const int n = t.n_rows();
  const TileScratch scratch = pool.get(thread);
  RowSums* rows = sums(index, part);
  std::fill(rows, rows + n, RowSums{});
  std::fill(scratch.top, scratch.top + n, kNoTop);
  std::fill(scratch.total, scratch.total + n * kLanes, 0.0f);
  std::fill(scratch.o, scratch.o + n * kLanes, kUnseen);
  sweep(t, part, scratch, RowVisit{state.kernels(q.dtype), t, scratch, rows});
  for (int64_t i = 0; i < n; ++i) {
    rows[i].top = scratch.top[i];
    rows[i].largest = *std::max_element(scratch.o + i * kLanes, scratch.o + (i + 1) * kLanes);
    for (int c = 0; c < kLanes; ++c) rows[i].total += scratch.total[i * kLanes + c];
  }
}

// Joins the parts of the first pass: scratch.top = log2 of each row's sum, scratch.total = the log2 below which A is
// small.
void StatsRun::thresholds(int64_t index, const TileScratch& scratch) const {
  for (int64_t i = 0; i < q.rows() * tile_heads; ++i) {
    RowSums row = sums(index, 0)[i];
    for (int64_t part = 1; part < n_parts; ++part) {
      const RowSums& other = sums(index, part)[i];
      const float top = std::max(row.top, other.top);
      row.total = row.total * std::exp2(row.top - top) + other.total * std::exp2(other.top - top);
      row.top = top;
      row.largest = std::max(row.largest, other.largest);
      row.n_seen += other.n_seen;
    }
    const bool any = row.total > 0.0f;
    const float log_total = any ? row.top + std::log2(row.total) : std::numeric_limits<float>::infinity();
    scratch.top[i] = log_total;
    const bool by_row = stats.rule == AttentionStats::Rule::kRowMax;
    const float limit = by_row ? row.largest - log_total + std::log2(stats.threshold) : -std::log2(row.n_seen);
    // What lies on the limit is not below it (a row of equal weights under kUniform), whatever the rounding.
    const float slack = 4e-7f * (1.0f + std::fabs(log_total) + std::fabs(limit));
    scratch.total[i] = any && std::isfinite(limit) ? limit - slack : limit;
  }
}

// One row of each output over the slots of a page; null where not wanted.
struct PageColumns {
  float *sums, *most, *below, *seen;
};

// Second pass: columns of whole pages are added to where they lie; those of the last page, whose slots end before the
// kernel's columns do, by way of a copy.
struct ColumnVisit {
  const StatsRun& run;
  const Tile& tile;
  const TileScratch& scratch;

  void begin(const Block&) const {}
  void end(const Block&) const {}
  void strip(const Block& block, const Strip& strip, const StripScores& scores) const {
    // A kernel call takes rows of one head.
    const int n_calls = tile.group > 1 ? strip.m : 1, m = strip.m / n_calls;
    for (int i = 0; i * kPageSlots < scores.n; ++i) {
      for (int call = 0; call < n_calls; ++call) {
        const int row = strip.row + call;
        const float* weight = run.stats.row_weight != nullptr ? run.stats.row_weight + row / tile.group : nullptr;
        columns({.s = scratch.s + call * kBlockColumns + i * kPageSlots,
                 .s_stride = kBlockColumns,
                 .m = m,
                 .n = std::min(scores.n - i * kPageSlots, kPageSlots),
                 .scale = scores.scale,
                 .log_total = scratch.top + row,
                 .log_small = scratch.total + row,
                 .weight = weight},
                outputs(tile.query_head + row % tile.group, block.index[i] * kPageSlots));
      }
    }
  }

  PageColumns outputs(int head, int64_t slot) const {
    const auto at = [&](const Tensor& t) { return t.empty() ? nullptr : t.row<float>(head) + slot; };
    const AttentionStats& s = run.stats;
    return {at(s.column_sums), at(s.column_max), at(s.below_counts), at(s.seen_counts)};
  }

  void columns(ColumnTile t, const PageColumns& out) const {
    const AttentionKernels& kernels = run.state.kernels(run.q.dtype);
    const int n = t.n;
    t.n = (n + kLanes - 1) / kLanes * kLanes;
    float copy[4][kPageSlots];
    float* from[4] = {out.sums, out.most, out.below, out.seen};
    float* to[4] = {out.sums, out.most, out.below, out.seen};
    for (int i = 0; i < 4 && t.n != n; ++i) {
      if (from[i] == nullptr) continue;
      std::fill(std::copy(from[i], from[i] + n, copy[i]), copy[i] + t.n, 0.0f);
      to[i] = copy[i];
    }
    t.sums = to[0], t.most = to[1], t.below = to[2], t.seen = to[3];
    kernels.columns(t);
    for (int i = 0; i < 4 && t.n != n; ++i) {
      if (from[i] != nullptr) std::copy(copy[i], copy[i] + n, from[i]);
    }
  }
};

void StatsRun::column_pass(int64_t item, int thread) const {
  const int64_t index = item / n_parts, part = item % n_parts;
  const TileScratch scratch = pool.get(thread);
  thresholds(index, scratch);
  const Tile t = tile(index);
  sweep(t, part, scratch, ColumnVisit{*this, t, scratch});
}

}  // namespace

void attention_stats(AttentionWorkspace& workspace, const Tensor& q, const KvView& kv, const AttentionArgs& args,
                     AttentionStats& stats) {
  CHECK(q.rank == 3 && kv.n_kv_heads > 0 && q.dim(1) % kv.n_kv_heads == 0 && q.dim(2) == kv.head_dim &&
        args.scale > 0.0f);
  CHECK(args.window <= 0 || kv.slot_pos == nullptr || args.positions != nullptr);
  CHECK(stats.behind == nullptr ||
        std::all_of(stats.behind, stats.behind + q.rows(), [](int32_t n) { return n >= 0; }));
  const int64_t most_slots = *std::max_element(kv.n_slots, kv.n_slots + kv.n_kv_heads), n_heads = q.dim(1);
  for (const Tensor* t : {&stats.column_sums, &stats.column_max, &stats.below_counts, &stats.seen_counts}) {
    CHECK(t->empty() || (t->dtype == DType::kF32 && t->rows() == n_heads && t->row_size() >= most_slots));
  }
  if (q.rows() == 0 || most_slots == 0) return;
  AttentionWorkspace::State& state = workspace.state();
  const int64_t group = n_heads / kv.n_kv_heads, tile_heads = q.rows() * group <= kGroupedRows ? group : 1;
  const int64_t n_tiles = n_heads / tile_heads;
  const int64_t most_parts = std::max<int64_t>(most_slots / (kMinItemPages * kPageSlots), 1);
  const int64_t n_parts = std::clamp<int64_t>((n_threads() * kItemsPerThread + n_tiles - 1) / n_tiles, 1, most_parts);
  AttentionWorkspace::State::grow(state.partials, n_heads * n_parts * q.rows() * static_cast<int64_t>(sizeof(RowSums)));
  const ScratchPool pool(state, n_threads(), q.rows() * tile_heads, q.dim(2));
  const StatsRun run{state, pool, q, kv, args, stats, static_cast<int>(tile_heads), n_parts};
  parallel_for(run.n_items(), [&run](int64_t item, int thread) { run.row_pass(item, thread); });
  parallel_for(run.n_items(), [&run](int64_t item, int thread) { run.column_pass(item, thread); });
}

}  // namespace vlcache::cpu
