// Statistics of the attention of a group of queries: one pass over the pages for every row's sum, skipped where
// attention has already computed it, and one for the columns. Scores are computed twice and never stored beyond a
// block.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/os/threads.h"
#include "ops/cpu/attention/attention.h"
#include "ops/cpu/attention/merge.h"
#include "ops/cpu/attention/tile_runner.h"

namespace vlcache::cpu {
namespace {

constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kMinItemPages = 8;
// Up to this many rows, all query heads of a kv head are one tile: K is then read twice instead of twice per head. With
// more it lies in L2 anyway, and a strip of one head's rows shares the sums of a column.
constexpr int64_t kGroupedRows = 96;

// Results of the first pass for a row over some pages, in base 2.
struct RowSums {
  float top = kNoTop;         // scale of `total`
  float total = 0.0f;         // sum of 2^(logit - top)
  float largest = -INFINITY;  // logit
  float n_seen = 0.0f;        // slots

  void add(const RowSums& other) {
    const Merge m = merge(top, other.top);
    total = total * m.a + other.total * m.b;
    top = m.top;
    largest = std::max(largest, other.largest);
    n_seen += other.n_seen;
  }
};

struct StatsRun {
  TileRunner& runner;
  const Tensor& q;
  const KvView& kv;
  const AttentionArgs& args;
  const AttentionStats& stats;
  int tile_heads = 1;       // query heads of a tile
  int64_t n_parts = 1;      // items of every tile
  RowSums* sums = nullptr;  // [tiles, n_parts, tile rows]

  int64_t n_items() const { return q.dim(1) / tile_heads * n_parts; }
  int64_t tile_rows() const { return q.rows() * tile_heads; }
  const AttentionKernels& kernels() const { return runner.kernels(q.dtype); }
  bool wants_row_sums() const { return stats.lse.empty(); }
  bool wants_row_pass() const { return wants_row_sums() || !stats.below_counts.empty(); }
  Tile tile(int64_t index) const;

  void row_pass(int64_t item, int thread) const;
  void column_pass(int64_t item, int thread) const;
  void thresholds(int64_t index, const TileScratch& scratch) const;
  void add_columns(const Tile& tile, const Block& block, const Strip& strip, const TileScratch& scratch) const;
  void add_band(const Tile& tile, int row, int64_t slot, const ColumnTile& t, float* sums) const;

  // Calls visit(tile, block, strip) for every strip that sees a slot of a block of the item's pages, its scores in
  // scratch.s. Tiles are parts of the whole one, of tokens that see the same pages as codes.
  template <typename Visit>
  void sweep(const Tile& whole, int64_t part, const TileScratch& scratch, const Visit& visit) const {
    for (int end = whole.n_tokens, begin = 0; end > 0; end = begin) {
      begin = whole.part_begin(end);
      const Tile tile = whole.part(begin, end);
      // The same pages for all tiles: other threads add to the columns of others.
      const auto bound = [&](int64_t i) {
        return i == n_parts ? tile.pages.size : tile.pages.n_before(whole.pages.page(whole.pages.size * i / n_parts));
      };
      sweep_pages(tile, bound(part), bound(part + 1), scratch, visit);
    }
  }
  template <typename Visit>
  void sweep_pages(const Tile& tile, int64_t begin, int64_t end, const TileScratch& scratch, const Visit& visit) const {
    pack_queries(tile, kernels(), q, scratch);
    Walk walk(tile, kernels(), begin, end);
    for (Block block = walk.next(); block.n_pages > 0; block = walk.next()) {
      prepare_block(tile, block, scratch);
      load_block(walk, scratch, /*values=*/false, block);
      const Strips strips(tile, kernels(), block.codec);
      for (int i = 0; i < strips.size(); ++i) {
        Strip strip = strips[i];
        score_strip(walk, block, strip, nullptr, scratch);
        if (strip.n > 0) visit(tile, block, strip);
      }
    }
  }
};

// Query heads [index * tile_heads, ...) with all their rows.
Tile StatsRun::tile(int64_t index) const {
  const int query_head = static_cast<int>(index) * tile_heads, n_rows = static_cast<int>(q.rows());
  const int head = query_head / static_cast<int>(q.dim(1) / kv.n_kv_heads);
  Tile tile{.kv = &kv,
            .args = &args,
            .head = head,
            .query_head = query_head,
            .group = tile_heads,
            .n_tokens = n_rows,
            .n_seen = int64_t{kv.n_slots[head]} - n_rows + 1,
            .n_after = stats.n_after,
            .counts = true};
  tile.place();
  return tile;
}

// Slots of a block that a token sees.
int count_seen(const Tile& tile, const Block& block, int token, const TileScratch& scratch) {
  int n = 0;
  for (int i = 0; i < block.n_pages; ++i) {
    n += block.masked[i] ? std::popcount(scratch.masks[i * tile.n_tokens + token]) : kPageSlots;
  }
  return n;
}

void StatsRun::row_pass(int64_t item, int thread) const {
  const Tile t = tile(item / n_parts);
  const TileScratch scratch = runner.scratch(thread);
  const int64_t n = t.n_rows();
  RowSums* rows = sums + item * n;
  float* largest = scratch.sums.o;
  std::fill(rows, rows + n, RowSums{});
  std::fill(scratch.sums.top, scratch.sums.top + n, kNoTop);
  std::fill(scratch.sums.total, scratch.sums.total + n * kLanes, 0.0f);
  std::fill(largest, largest + n * kLanes, kUnseen);
  sweep(t, item % n_parts, scratch, [&](const Tile& tile, const Block& block, const Strip& strip) {
    const int64_t first = tile.row * tile.group;
    for (int r = strip.row; r < strip.row + strip.m; ++r) {
      rows[first + r].n_seen += static_cast<float>(count_seen(tile, block, r / tile.group, scratch));
    }
    kernels().row_sums({.s = scratch.s,
                        .s_stride = kBlockColumns,
                        .m = strip.m,
                        .n = strip.columns(),
                        .scale = strip.scale,
                        .top = scratch.sums.top + first + strip.row,
                        .total = wants_row_sums() ? scratch.sums.total + (first + strip.row) * kLanes : nullptr,
                        .largest = largest + (first + strip.row) * kLanes});
  });
  for (int64_t i = 0; i < n; ++i) {
    rows[i].top = scratch.sums.top[i];
    rows[i].total = sum_lanes(scratch.sums.total + i * kLanes);
    rows[i].largest = *std::max_element(largest + i * kLanes, largest + (i + 1) * kLanes);
  }
}

// Merges the parts of the first pass: scratch.sums.top = log2 of each row's sum, .total = the log2 below which A is
// small.
void StatsRun::thresholds(int64_t index, const TileScratch& scratch) const {
  const int64_t n = tile_rows();
  for (int64_t i = 0; i < n; ++i) {
    RowSums row;
    for (int64_t part = 0; part < n_parts && wants_row_pass(); ++part) {
      row.add(sums[(index * n_parts + part) * n + i]);
    }
    const int64_t head = index * tile_heads + i % tile_heads;
    const Merge m = merge(row.top, sink_of(args, head));
    float log_total = m.top + std::log2(row.total * m.a + m.b);
    if (!wants_row_sums()) {
      log_total = stats.lse.row<float>(i / tile_heads)[head] * kLog2e;
    }
    const bool any = std::isfinite(log_total);
    if (!any) log_total = std::numeric_limits<float>::infinity();
    scratch.sums.top[i] = log_total;
    const bool by_row = stats.rule == AttentionStats::Rule::kRowMax;
    const float limit = by_row ? row.largest - log_total + std::log2(stats.threshold) : -std::log2(row.n_seen);
    // A value on the limit is not below it (a row of equal weights under kUniform), whatever the rounding.
    const float slack = 4e-7f * (1.0f + std::fabs(log_total) + std::fabs(limit));
    scratch.sums.total[i] = any && std::isfinite(limit) ? limit - slack : limit;
  }
}

// Adds columns of rows of one head to a row of each output (null: not requested). Goes through a copy where the slots
// end before the kernel's columns do.
void add_page(const AttentionKernels& kernels, ColumnTile t, const std::array<float*, 4>& outputs) {
  const int n = t.n;
  t.n = (n + kLanes - 1) / kLanes * kLanes;
  std::array<float*, 4> to = outputs;
  float copies[4][kPageSlots];
  for (size_t i = 0; i < to.size() && t.n != n; ++i) {
    if (outputs[i] == nullptr) continue;
    std::fill(std::copy(outputs[i], outputs[i] + n, copies[i]), copies[i] + t.n, 0.0f);
    to[i] = copies[i];
  }
  t.sums = to[0], t.most = to[1], t.below = to[2], t.seen = to[3];
  kernels.columns(t);
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] != outputs[i]) std::copy(to[i], to[i] + n, outputs[i]);
  }
}

void StatsRun::add_columns(const Tile& tile, const Block& block, const Strip& strip, const TileScratch& scratch) const {
  const int m = tile.group > 1 ? 1 : strip.m;  // rows of a kernel call, which are of one head
  const int64_t first = tile.row * tile.group;
  for (int i = 0; i * kPageSlots < strip.n; ++i) {
    for (int row = strip.row; row < strip.row + strip.m; row += m) {
      const auto output = [&](const Tensor& t) {
        const int head = tile.query_head + row % tile.group;
        return t.empty() ? nullptr : t.row<float>(head) + block.index[i] * kPageSlots;
      };
      const ColumnTile t{
          .s = scratch.s + (row - strip.row) * kBlockColumns + i * kPageSlots,
          .s_stride = kBlockColumns,
          .m = m,
          .n = std::min(strip.n - i * kPageSlots, kPageSlots),
          .scale = strip.scale,
          .log_total = scratch.sums.top + first + row,
          .log_small = scratch.sums.total + first + row,
          .weight = stats.row_weight != nullptr ? stats.row_weight + tile.row + row / tile.group : nullptr};
      add_page(
          kernels(), t,
          {output(stats.column_sums), output(stats.column_max), output(stats.below_counts), output(stats.seen_counts)});
      if (!stats.band_sums.empty()) add_band(tile, row, block.index[i] * kPageSlots, t, output(stats.band_sums));
    }
  }
}

// Adds to `sums`, those of slots [slot, slot + t.n), the weights that rows [row, row + t.m) have within their bands: in
// one call where the bands hold all these slots, else row by row.
void StatsRun::add_band(const Tile& tile, int row, int64_t slot, const ColumnTile& t, float* sums) const {
  const auto begin = [&](int r) { return tile.limit((row + r) / tile.group) - stats.band; };
  int64_t last_begin = begin(0);
  for (int r = 1; r < t.m; ++r) last_begin = std::max(last_begin, begin(r));
  if (last_begin <= slot) {
    add_page(kernels(), t, {sums, nullptr, nullptr, nullptr});
    return;
  }
  for (int r = 0; r < t.m; ++r) {
    if (begin(r) >= slot + t.n) continue;
    float values[kPageSlots] = {};
    ColumnTile one = t;
    one.s += r * t.s_stride;
    one.m = 1;
    one.log_total += r;
    one.log_small += r;
    if (one.weight != nullptr) one.weight += r;
    add_page(kernels(), one, {values, nullptr, nullptr, nullptr});
    for (int64_t j = std::max<int64_t>(begin(r) - slot, 0); j < t.n; ++j) sums[j] += values[j];
  }
}

void StatsRun::column_pass(int64_t item, int thread) const {
  const TileScratch scratch = runner.scratch(thread);
  thresholds(item / n_parts, scratch);
  const Tile t = tile(item / n_parts);
  sweep(t, item % n_parts, scratch,
        [&](const Tile& tile, const Block& block, const Strip& strip) { add_columns(tile, block, strip, scratch); });
}

}  // namespace

void attention_stats(AttentionWorkspace& workspace, const Tensor& q, const KvView& kv, const AttentionArgs& args,
                     AttentionStats& stats) {
  CHECK(q.rank == 3 && kv.n_kv_heads > 0 && q.dim(1) % kv.n_kv_heads == 0 && q.dim(2) == kv.head_dim &&
        args.scale > 0.0f);
  CHECK(args.window <= 0 || kv.slot_pos == nullptr || args.positions != nullptr);
  CHECK(stats.n_after == nullptr ||
        std::all_of(stats.n_after, stats.n_after + q.rows(), [](int32_t n) { return n >= 0; }));
  const int64_t most_slots = *std::max_element(kv.n_slots, kv.n_slots + kv.n_kv_heads), n_heads = q.dim(1);
  for (const Tensor* t :
       {&stats.column_sums, &stats.band_sums, &stats.column_max, &stats.below_counts, &stats.seen_counts}) {
    CHECK(t->empty() || (t->dtype == DType::kF32 && t->rows() == n_heads && t->row_size() >= most_slots));
  }
  CHECK(args.sink_logits.empty() || std::ssize(args.sink_logits) == n_heads);
  CHECK(stats.lse.empty() ||
        (stats.lse.dtype == DType::kF32 && stats.lse.rows() == q.rows() && stats.lse.row_size() == n_heads));
  if (q.rows() == 0 || most_slots == 0) return;
  StatsRun run{workspace.runner(), q, kv, args, stats};
  const int64_t group = n_heads / kv.n_kv_heads;
  if (q.rows() * group <= kGroupedRows) run.tile_heads = static_cast<int>(group);
  const int64_t n_tiles = n_heads / run.tile_heads;
  const int64_t most_parts = std::max<int64_t>(most_slots / (kMinItemPages * kPageSlots), 1);
  run.n_parts = std::clamp<int64_t>((n_threads() * kItemsPerThread + n_tiles - 1) / n_tiles, 1, most_parts);
  run.sums = reinterpret_cast<RowSums*>(
      run.runner.shared(run.n_items() * run.tile_rows() * static_cast<int64_t>(sizeof(RowSums))));
  run.runner.reserve(run.tile_rows(), q.dim(2));
  if (run.wants_row_pass()) parallel_for(run.n_items(), [&](int64_t item, int thread) { run.row_pass(item, thread); });
  parallel_for(run.n_items(), [&](int64_t item, int thread) { run.column_pass(item, thread); });
}

}  // namespace vlcache::cpu
